"""Since when a budget keeps a job from running."""

import sqlalchemy as sa
from alembic import op

revision = '0022'
down_revision = '0021'
branch_labels = None
depends_on = None

PAUSED = sa.text("state = 'paused'")
QUEUED_AGAIN = sa.text("state = 'queued' AND attempt > 0")


def upgrade() -> None:
    op.add_column('jobs', sa.Column('paused_at', sa.Double()))
    op.create_index('ix_jobs_paused', 'jobs', ['id'], sqlite_where=PAUSED, postgresql_where=PAUSED)
    op.create_index(
        'ix_jobs_queued_again', 'jobs', ['id'], sqlite_where=QUEUED_AGAIN, postgresql_where=QUEUED_AGAIN
    )
