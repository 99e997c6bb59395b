"""The service of a machine's image: reads the node file, fetches the cluster's secret, and joins Ray."""
