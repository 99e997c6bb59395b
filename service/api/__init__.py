"""The HTTP API: parse a request, ask the queue, write to the database, answer."""
