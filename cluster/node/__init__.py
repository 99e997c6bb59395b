"""What the image of a machine runs: it reads what the machine is, fetches the cluster's secret, and joins Ray."""
