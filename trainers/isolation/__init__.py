"""Keeps the command of a job apart from its node and from other jobs: which user it is, and which files it sees."""
