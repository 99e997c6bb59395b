"""The supervisor of a worker: the parent of the user's process, on the worker's node."""
