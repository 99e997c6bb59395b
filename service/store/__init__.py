"""Memory: the only SQL."""
