"""Thought, all pure: intake, life cycle, ordering, admission, retry."""
