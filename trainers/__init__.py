"""One attempt: driver, supervisors, the user's processes, their checkpoints."""
