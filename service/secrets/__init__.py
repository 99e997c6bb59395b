"""Secrets of projects: encrypted in the store, and resolved for each attempt."""
