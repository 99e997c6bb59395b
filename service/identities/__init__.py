"""Who asks, and what they may do where: principals, roles, tokens and the table of permissions.  Pure."""
