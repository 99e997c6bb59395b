"""What jobs read: where their inputs lie, and their copies on a node."""
