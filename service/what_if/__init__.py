"""What would have been: a trace replayed with the service's own queue and planner."""
