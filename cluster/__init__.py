"""Machines: which there are, which are needed, and how to get from one to the other."""
