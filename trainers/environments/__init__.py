"""Python environments of jobs: what a job asks for, and the folder on a node in which `uv` installs it."""
