"""Alembic migrations of the database; `service.store.migrate` runs them."""
