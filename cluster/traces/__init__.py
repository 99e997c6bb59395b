"""Recorded and generated traces: jobs with their arrivals, and prices and capacity over time (pure)."""
