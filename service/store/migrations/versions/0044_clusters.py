"""To which cluster jobs, attempts, nodes and what is remembered of them belong."""

import sqlalchemy as sa
from alembic import op

revision = '0044'
down_revision = '0043'
branch_labels = None
depends_on = None

TABLES = (
    'jobs', 'attempts', 'nodes', 'uses', 'drills', 'waits', 'ray_requests', 'cluster_events', 'cloud', 'sick_reports',
    'refusals',
)  # fmt: skip
LINE: tuple[str | sa.TextClause, ...] = (
    sa.text('priority DESC'), 'created_at', 'id', 'reason', 'not_before',
)  # fmt: skip
LIVE = "state IN ('starting', 'running', 'draining')"
#: Indexes by which a controller finds what is its own; they keep their names, which the release before writes into its
#: questions.
INDEXES: tuple[tuple[str, str, tuple[str | sa.TextClause, ...], str], ...] = (
    ('ix_jobs_line', 'jobs', LINE, "state = 'queued'"),
    ('ix_jobs_line_of_project', 'jobs', ('project', *LINE), "state = 'queued'"),
    (
        'ix_jobs_overdue',
        'jobs',
        (sa.text('(waits_from + wait_time_s)'),),
        "state = 'queued' AND attempt = 0 AND wait_time_s IS NOT NULL",
    ),
    ('ix_jobs_paused', 'jobs', ('id',), "state = 'paused'"),
    ('ix_jobs_queued_again', 'jobs', ('id',), "state = 'queued' AND attempt > 0"),
    ('ix_attempts_unreleased', 'attempts', ('id',), 'released_at IS NULL'),
    (
        'ix_attempts_unlisted',
        'attempts',
        ('id',),
        "state = 'ended' AND released_at IS NOT NULL AND listed_at IS NULL",
    ),
    ('ix_nodes_live', 'nodes', ('id',), 'ended_at IS NULL'),
    ('ix_uses_open', 'uses', ('job_id',), 'ended_at IS NULL'),
)


def upgrade() -> None:
    for table in TABLES:
        column = sa.Column('cluster', sa.String(40), nullable=False, server_default='default')
        op.add_column(table, column)
    with op.batch_alter_table('refusals') as refusals:
        refusals.alter_column('offering', type_=sa.String(240), existing_nullable=False)
    op.add_column('leases', sa.Column('settings', sa.JSON))
    for name, table, columns, where in INDEXES:
        op.drop_index(name, table)
        _create(name, table, columns, where)
    _create('ix_attempts_live', 'attempts', ('id',), LIVE)
    op.create_index('ix_nodes_cluster_ended_at', 'nodes', ['cluster', 'ended_at'])
    op.create_index('uq_cloud_cluster', 'cloud', ['cluster'], unique=True)
    op.create_index('ix_waits_cluster', 'waits', ['cluster'])


def _create(name: str, table: str, columns: tuple[str | sa.TextClause, ...], where: str) -> None:
    of_rows = sa.text(where)
    op.create_index(
        name, table, ['cluster', *columns], sqlite_where=of_rows, postgresql_where=of_rows
    )
