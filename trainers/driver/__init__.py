"""The driver of an attempt: an actor on the head that decides for all its workers."""
