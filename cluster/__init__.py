"""Machines: what there is, what is wished for, and how to get from one to the other."""
