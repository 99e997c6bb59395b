"""The door: parse, ask the queue, write the store, answer."""
