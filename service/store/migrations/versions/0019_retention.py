"""When bundles were last used, and which ended jobs have been tidied up."""

import json

import sqlalchemy as sa
from alembic import op

revision = '0019'
down_revision = '0018'
branch_labels = None
depends_on = None

KEPT = sa.text('ended_at IS NOT NULL AND pruned_at IS NULL')


def upgrade() -> None:
    op.add_column('jobs', sa.Column('pruned_at', sa.Double()))
    op.create_index('ix_jobs_kept', 'jobs', ['ended_at'], sqlite_where=KEPT, postgresql_where=KEPT)
    op.create_index('ix_idempotency_job_id', 'idempotency', ['job_id'])
    op.create_index('ix_models_job_id', 'models', ['job_id'])
    bundles = op.create_table(
        'bundles',
        sa.Column('digest', sa.String(71), primary_key=True),
        sa.Column('used_at', sa.Double(), nullable=False),
        sa.Column('gone_at', sa.Double()),
        sa.Index('ix_bundles_used_at', 'used_at'),
    )
    used: dict[str, float] = {}
    for spec, created_at in op.get_bind().execute(sa.text('SELECT spec, created_at FROM jobs')):
        code = (json.loads(spec) if isinstance(spec, str | bytes) else spec).get('code')
        if isinstance(code, str) and code.startswith('sha256:') and len(code) == 71:
            used[code] = max(created_at, used.get(code, created_at))
    if used:
        op.bulk_insert(bundles, [{'digest': one, 'used_at': at, 'gone_at': None} for one, at in used.items()])


def downgrade() -> None:
    op.drop_table('bundles')
    op.drop_index('ix_models_job_id', 'models')
    op.drop_index('ix_idempotency_job_id', 'idempotency')
    op.drop_index('ix_jobs_kept', 'jobs')
    op.drop_column('jobs', 'pruned_at')
