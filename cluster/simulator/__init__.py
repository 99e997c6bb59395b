"""A trace replayed under policies, with the planner and the queue that run the real cluster (pure)."""
