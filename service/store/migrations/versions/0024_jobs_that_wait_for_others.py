"""Jobs that wait for the ends of others, which is no time that counts as waiting."""

import sqlalchemy as sa
from alembic import op

revision = '0024'
down_revision = '0023'
branch_labels = None
depends_on = None

ENDED = sa.text('ended_as IS NOT NULL')
NEVER_STARTED = sa.text("state = 'queued' AND attempt = 0 AND wait_time_s IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        'dependencies',
        sa.Column('job_id', sa.String(40), sa.ForeignKey('jobs.id'), primary_key=True),
        sa.Column('other_id', sa.String(40), primary_key=True),
        sa.Column('other_name', sa.Text(), nullable=False),
        sa.Column('wanted', sa.String(16), nullable=False),
        sa.Column('ended_as', sa.String(32)),
    )
    op.create_index('ix_dependencies_other_id', 'dependencies', ['other_id'])
    op.create_index(
        'ix_dependencies_ended', 'dependencies', ['job_id'], sqlite_where=ENDED, postgresql_where=ENDED
    )
    op.add_column('jobs', sa.Column('waits_from', sa.Double()))
    op.execute('UPDATE jobs SET waits_from = created_at')
    op.drop_index('ix_jobs_overdue', 'jobs')
    op.create_index(
        'ix_jobs_overdue',
        'jobs',
        [sa.text('(waits_from + wait_time_s)')],
        sqlite_where=NEVER_STARTED,
        postgresql_where=NEVER_STARTED,
    )
