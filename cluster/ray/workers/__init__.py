"""Ray's worker processes, forked from one process of their node that has imported everything."""
