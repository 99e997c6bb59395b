"""A Ray cluster that Remora did not start: its nodes are claimed and released, and never made or ended."""
