"""What a user submits: the specification of a job, its fields, and sentences for what is wrong with one (pure)."""
