"""Which nodes to launch, to keep, to drain and to end, and where workers fit: pure decisions."""
