"""A Ray cluster of local processes: real raylets whose deaths are real too."""
