"""Measurements against peers in the same run: `python -m benchmarks NAME`; each prints and writes one JSON document."""
