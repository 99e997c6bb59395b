"""Mutation testing of what is pure: faults are put in on purpose, and tests have to see them (`make mutate`)."""
