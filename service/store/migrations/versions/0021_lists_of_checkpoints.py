"""When the list of a job's checkpoints was compared with the storage after an attempt."""

import sqlalchemy as sa
from alembic import op

revision = '0021'
down_revision = '0019'
branch_labels = None
depends_on = None

UNLISTED = sa.text("state = 'ended' AND released_at IS NOT NULL AND listed_at IS NULL")


def upgrade() -> None:
    op.add_column('attempts', sa.Column('listed_at', sa.Double()))
    # Only the last attempt of a job says what it has; jobs that were emptied keep what they show.
    op.execute(
        sa.text(
            "UPDATE attempts SET listed_at = ended_at WHERE state = 'ended' AND EXISTS (SELECT 1 FROM jobs"
            ' WHERE jobs.id = attempts.job_id AND (jobs.attempt > attempts.attempt OR jobs.pruned_at IS NOT NULL))'
        )
    )
    op.create_index('ix_attempts_unlisted', 'attempts', ['id'], sqlite_where=UNLISTED, postgresql_where=UNLISTED)


def downgrade() -> None:
    op.drop_index('ix_attempts_unlisted', 'attempts')
    op.drop_column('attempts', 'listed_at')
