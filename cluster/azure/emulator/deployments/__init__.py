"""Deployments of templates in the emulated Resource Manager: evaluated, compared and carried out."""
