"""Starts, watches and ends the processes of one command on a node; imported by supervisors and by backends."""
