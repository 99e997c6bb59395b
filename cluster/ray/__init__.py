"""Nodes in Ray: how they join, which are members, how they are drained."""
