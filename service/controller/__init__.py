"""The controller process: it holds the lease, and scales, dispatches, tracks and sweeps."""
