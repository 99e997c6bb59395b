"""The user's code: which files belong to it, and the bundle that they are sent in."""
