"""Installs the service on a machine, upgrades it, and backs it up, in one folder."""
