"""Inputs that are mounted: a read-only tree of a storage, served by one process for all workers of a node."""
