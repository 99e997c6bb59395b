"""A script's side of its connection to the supervisor; standard library only."""
