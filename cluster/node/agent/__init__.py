"""The sidecar process of a node: it watches GPUs and scheduled events, and reports to the head."""
