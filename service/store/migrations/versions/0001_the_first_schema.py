"""The first schema."""

import sqlalchemy as sa
from alembic import op

revision = '0001'
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('jobs',
    sa.Column('id', sa.String(length=40), nullable=False),
    sa.Column('name', sa.Text(), nullable=False),
    sa.Column('project', sa.Text(), nullable=False),
    sa.Column('priority', sa.Integer(), nullable=False),
    sa.Column('spec', sa.JSON(), nullable=False),
    sa.Column('min_workers', sa.Integer(), nullable=False),
    sa.Column('max_workers', sa.Integer(), nullable=False),
    sa.Column('worker_resources', sa.JSON(), nullable=False),
    sa.Column('retry_limit', sa.Integer(), nullable=False),
    sa.Column('backoff_s', sa.Double(), nullable=False),
    sa.Column('run_time_s', sa.Double(), nullable=True),
    sa.Column('wait_time_s', sa.Double(), nullable=True),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Column('state', sa.String(length=32), nullable=False),
    sa.Column('reason', sa.Text(), nullable=True),
    sa.Column('message', sa.Text(), nullable=True),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('user_failures', sa.Integer(), nullable=False),
    sa.Column('losses', sa.Integer(), nullable=False),
    sa.Column('loss_streak', sa.Integer(), nullable=False),
    sa.Column('not_before', sa.Double(), nullable=False),
    sa.Column('step', sa.BigInteger(), nullable=True),
    sa.Column('max_step', sa.BigInteger(), nullable=True),
    sa.Column('step_at', sa.Double(), nullable=True),
    sa.Column('total_steps', sa.BigInteger(), nullable=True),
    sa.Column('world_size', sa.BigInteger(), nullable=False),
    sa.Column('repeated_steps', sa.BigInteger(), nullable=False),
    sa.Column('lost_s', sa.Double(), nullable=False),
    sa.Column('lost_since', sa.Double(), nullable=True),
    sa.Column('trained_s', sa.Double(), nullable=False),
    sa.Column('checkpoint_step', sa.BigInteger(), nullable=True),
    sa.Column('cancel_requested_at', sa.Double(), nullable=True),
    sa.Column('started_at', sa.Double(), nullable=True),
    sa.Column('ended_at', sa.Double(), nullable=True),
    sa.Column('version', sa.BigInteger(), nullable=False),
    sa.Column('event_seq', sa.BigInteger(), nullable=False),
    sa.Column('log_seq', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    with op.batch_alter_table('jobs', schema=None) as batch_op:
        batch_op.create_index('ix_jobs_active', ['id'], unique=False, sqlite_where=sa.text("state IN ('queued', 'admitted', 'running', 'paused')"), postgresql_where=sa.text("state IN ('queued', 'admitted', 'running', 'paused')"))
        batch_op.create_index('ix_jobs_project_id', ['project', 'id'], unique=False)
        batch_op.create_index('ix_jobs_state_id', ['state', 'id'], unique=False)

    op.create_table('leases',
    sa.Column('name', sa.String(length=64), nullable=False),
    sa.Column('owner', sa.String(length=64), nullable=False),
    sa.Column('token', sa.BigInteger(), nullable=False),
    sa.Column('renewed_at', sa.Double(), nullable=False),
    sa.Column('expires_at', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('name')
    )
    op.create_table('nodes',
    sa.Column('id', sa.String(length=40), nullable=False),
    sa.Column('pool', sa.Text(), nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Column('state', sa.String(length=32), nullable=False),
    sa.Column('address', sa.Text(), nullable=True),
    sa.Column('resources', sa.JSON(), nullable=False),
    sa.Column('message', sa.Text(), nullable=True),
    sa.Column('is_failure', sa.Boolean(), nullable=False),
    sa.Column('ready_at', sa.Double(), nullable=True),
    sa.Column('ended_at', sa.Double(), nullable=True),
    sa.Column('event_seq', sa.BigInteger(), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    with op.batch_alter_table('nodes', schema=None) as batch_op:
        batch_op.create_index('ix_nodes_ended_at', ['ended_at'], unique=False)
        batch_op.create_index('ix_nodes_live', ['id'], unique=False, sqlite_where=sa.text('ended_at IS NULL'), postgresql_where=sa.text('ended_at IS NULL'))

    op.create_table('attempts',
    sa.Column('id', sa.String(length=40), nullable=False),
    sa.Column('job_id', sa.String(length=40), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Column('state', sa.String(length=32), nullable=False),
    sa.Column('end_reason', sa.String(length=32), nullable=True),
    sa.Column('message', sa.Text(), nullable=True),
    sa.Column('exit_code', sa.BigInteger(), nullable=True),
    sa.Column('world_size', sa.BigInteger(), nullable=False),
    sa.Column('step', sa.BigInteger(), nullable=True),
    sa.Column('resumed_from_step', sa.BigInteger(), nullable=True),
    sa.Column('repeated_steps', sa.BigInteger(), nullable=False),
    sa.Column('lost_s', sa.Double(), nullable=False),
    sa.Column('last_record_seq', sa.BigInteger(), nullable=False),
    sa.Column('stop_reason', sa.String(length=32), nullable=True),
    sa.Column('stop_requested_at', sa.Double(), nullable=True),
    sa.Column('launched_at', sa.Double(), nullable=True),
    sa.Column('released_at', sa.Double(), nullable=True),
    sa.Column('started_at', sa.Double(), nullable=True),
    sa.Column('ended_at', sa.Double(), nullable=True),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], ),
    sa.PrimaryKeyConstraint('id'),
    sa.UniqueConstraint('job_id', 'attempt', name='uq_attempts_job_id_attempt')
    )
    with op.batch_alter_table('attempts', schema=None) as batch_op:
        batch_op.create_index('ix_attempts_unreleased', ['id'], unique=False, sqlite_where=sa.text('released_at IS NULL'), postgresql_where=sa.text('released_at IS NULL'))
        batch_op.create_index('uq_attempts_live', ['job_id'], unique=True, sqlite_where=sa.text("state IN ('starting', 'running', 'draining')"), postgresql_where=sa.text("state IN ('starting', 'running', 'draining')"))

    op.create_table('checkpoints',
    sa.Column('job_id', sa.String(length=40), nullable=False),
    sa.Column('step', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('world_size', sa.BigInteger(), nullable=False),
    sa.Column('committed_at', sa.Double(), nullable=False),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.Column('location', sa.Text(), nullable=False),
    sa.Column('files', sa.JSON(), nullable=False),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], ),
    sa.PrimaryKeyConstraint('job_id', 'step')
    )
    op.create_table('events',
    sa.Column('job_id', sa.String(length=40), nullable=False),
    sa.Column('seq', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('message', sa.Text(), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=True),
    sa.Column('data', sa.JSON(), nullable=False),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], ),
    sa.PrimaryKeyConstraint('job_id', 'seq')
    )
    op.create_table('idempotency',
    sa.Column('key', sa.String(length=128), nullable=False),
    sa.Column('body_digest', sa.String(length=64), nullable=False),
    sa.Column('job_id', sa.String(length=40), nullable=False),
    sa.Column('answer', sa.Text(), nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], ),
    sa.PrimaryKeyConstraint('key')
    )
    with op.batch_alter_table('idempotency', schema=None) as batch_op:
        batch_op.create_index('ix_idempotency_created_at', ['created_at'], unique=False)

    op.create_table('log_lines',
    sa.Column('job_id', sa.String(length=40), nullable=False),
    sa.Column('seq', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('rank', sa.BigInteger(), nullable=False),
    sa.Column('stream', sa.String(length=16), nullable=False),
    sa.Column('text', sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], ),
    sa.PrimaryKeyConstraint('job_id', 'seq')
    )
    op.create_table('metrics',
    sa.Column('job_id', sa.String(length=40), nullable=False),
    sa.Column('step', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('world_size', sa.BigInteger(), nullable=False),
    sa.Column('data', sa.JSON(), nullable=False),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], ),
    sa.PrimaryKeyConstraint('job_id', 'step')
    )
    op.create_table('node_events',
    sa.Column('node_id', sa.String(length=40), nullable=False),
    sa.Column('seq', sa.BigInteger(), autoincrement=False, nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('message', sa.Text(), nullable=False),
    sa.ForeignKeyConstraint(['node_id'], ['nodes.id'], ),
    sa.PrimaryKeyConstraint('node_id', 'seq')
    )


def downgrade() -> None:
    raise NotImplementedError('the first schema has nothing before it')
