"""Nodes that are virtual machines of Azure."""
