"""Alembic's entry: runs on the connection, and inside the transaction, that `migrate` made."""

from alembic import context

from service.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # SQLite can change a column only by copying its table.
    render_as_batch=True,
)
context.run_migrations()
