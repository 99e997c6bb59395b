"""Machines that InfiniBand joins: instances of Uniform scale sets; `nodes.py` is where a reader begins."""
