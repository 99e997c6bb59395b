"""The Python client: what is sent, how answers are read, and the blocking and asynchronous shells around it."""
