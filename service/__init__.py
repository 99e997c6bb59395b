"""The service: the door, the queue, the store and the loops that act."""
