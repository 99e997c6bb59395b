"""The head of a Ray cluster as a service of its own, and the node for drivers beside it."""
