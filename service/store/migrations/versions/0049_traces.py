"""Traces: the context of the request that submitted a job, and until when spans of an attempt were sent."""

import sqlalchemy as sa
from alembic import op

revision = '0049'
down_revision = '0048'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('jobs', sa.Column('traceparent', sa.String(55)))
    op.add_column('attempts', sa.Column('traced_at', sa.Double()))
    op.add_column('attempts', sa.Column('is_traced', sa.Boolean(), nullable=False, server_default=sa.false()))
    untraced = sa.text("state = 'ended' AND NOT is_traced")
    op.create_index(
        'ix_attempts_untraced',
        'attempts',
        ['ended_at'],
        sqlite_where=untraced,
        postgresql_where=untraced,
    )
