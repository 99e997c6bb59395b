"""The service: the HTTP API, the queue, the database, and the controller's loops."""
