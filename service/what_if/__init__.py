"""What-if: replays of a trace with the service's own queue and planner."""
