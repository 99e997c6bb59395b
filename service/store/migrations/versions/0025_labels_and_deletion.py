"""Labels of jobs, and jobs that their owners delete."""

import sqlalchemy as sa
from alembic import op

revision = '0025'
down_revision = '0024'
branch_labels = None
depends_on = None

GOING = sa.text('delete_requested_at IS NOT NULL AND deleted_at IS NULL')


def upgrade() -> None:
    op.add_column('jobs', sa.Column('labels', sa.JSON(), nullable=False, server_default='{}'))
    op.add_column('jobs', sa.Column('delete_requested_at', sa.Double()))
    op.add_column('jobs', sa.Column('deleted_at', sa.Double()))
    op.create_index(
        'ix_jobs_going', 'jobs', ['delete_requested_at'], sqlite_where=GOING, postgresql_where=GOING
    )
    op.create_table(
        'job_labels',
        sa.Column('job_id', sa.String(40), sa.ForeignKey('jobs.id'), primary_key=True),
        sa.Column('name', sa.String(63), primary_key=True),
        sa.Column('value', sa.String(200), nullable=False),
    )
    op.create_index('ix_job_labels_name', 'job_labels', ['name', 'value', 'job_id'])
