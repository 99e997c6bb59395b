"""Pure decisions: intake, life cycle, queue order, admission, quotas, retry."""
