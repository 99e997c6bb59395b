"""The line of waiting jobs in order, and totals that are kept."""

import sqlalchemy as sa
from alembic import op

revision = '0018'
down_revision = '0017'
branch_labels = None
depends_on = None

QUEUED = sa.text("state = 'queued'")
TERMINAL = "state IN ('succeeded', 'failed', 'cancelled')"


def upgrade() -> None:
    line: list[str | sa.TextClause] = [sa.text('priority DESC'), 'created_at', 'id', 'reason', 'not_before']
    op.create_index('ix_jobs_line', 'jobs', line, sqlite_where=QUEUED, postgresql_where=QUEUED)
    op.create_index(
        'ix_jobs_line_of_project', 'jobs', ['project', *line], sqlite_where=QUEUED, postgresql_where=QUEUED
    )
    never_started = sa.text("state = 'queued' AND attempt = 0 AND wait_time_s IS NOT NULL")
    op.create_index(
        'ix_jobs_overdue',
        'jobs',
        [sa.text('(created_at + wait_time_s)')],
        sqlite_where=never_started,
        postgresql_where=never_started,
    )
    op.create_index('ix_cluster_events_kind', 'cluster_events', ['kind', 'seq'])
    op.create_table(
        'totals',
        sa.Column('kind', sa.String(32), primary_key=True),
        sa.Column('word', sa.String(32), primary_key=True),
        sa.Column('amount', sa.Double(), nullable=False),
    )
    for statement in (
        f"INSERT INTO totals SELECT 'jobs', state, count(*) FROM jobs WHERE {TERMINAL} GROUP BY state",
        "INSERT INTO totals SELECT 'attempts', end_reason, count(*) FROM attempts "
        "WHERE end_reason IS NOT NULL GROUP BY end_reason",
        "INSERT INTO totals SELECT 'sums', 'repeated_steps', coalesce(sum(repeated_steps), 0) FROM jobs",
        "INSERT INTO totals SELECT 'sums', 'lost_s', coalesce(sum(lost_s), 0) FROM jobs",
    ):
        op.execute(statement)


def downgrade() -> None:
    op.drop_table('totals')
    op.drop_index('ix_cluster_events_kind', 'cluster_events')
    op.drop_index('ix_jobs_overdue', 'jobs')
    op.drop_index('ix_jobs_line_of_project', 'jobs')
    op.drop_index('ix_jobs_line', 'jobs')
