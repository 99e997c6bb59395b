"""Nodes that are worker pods of a KubeRay cluster."""
