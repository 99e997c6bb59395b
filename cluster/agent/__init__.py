"""The node agent: one small process per machine that hears what its cloud plans, and says it to the cluster."""
