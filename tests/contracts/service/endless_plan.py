"""A replay that takes minutes: years of which every minute is looked at."""

from __future__ import annotations

import json

#: Two jobs, the second one years after the first.
TRACE = "\n".join(
    json.dumps(line)
    for line in (
        {
            "kind": "offering",
            "size": "s",
            "capacity": "spot",
            "resources": {"CPU": 4},
            "price_per_hour": 1,
            "evictions_per_hour": 0.05,
        },
        {"kind": "job", "id": "early", "at_s": 0, "resources": {"CPU": 1}, "work_s": 100},
        {"kind": "job", "id": "late", "at_s": 9e7, "resources": {"CPU": 1}, "work_s": 100},
    )
)
POLICY = """
pools:
  cpu:
    sizes: [s]
    zones: [any]
    capacity: spot
    max_nodes: 4
    schedules: [{window: {begins: "0 8 * * *", lasts_s: 7200}, max_nodes: 3}]
"""
