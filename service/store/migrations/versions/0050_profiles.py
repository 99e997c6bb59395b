"""Profiles that owners ask for of running jobs."""

import sqlalchemy as sa
from alembic import op

revision = '0050'
down_revision = '0049'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'profiles',
        sa.Column('job_id', sa.String(40), sa.ForeignKey('jobs.id'), primary_key=True),
        sa.Column('number', sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column('attempt', sa.Integer(), nullable=False),
        sa.Column('rank', sa.Integer(), nullable=False),
        sa.Column('steps', sa.Integer(), nullable=False),
        sa.Column('requested_at', sa.Double(), nullable=False),
        sa.Column('taken_at', sa.Double()),
        sa.Column('ended_at', sa.Double()),
        sa.Column('message', sa.Text()),
        sa.Column('file', sa.String(32)),
        sa.Column('profiled_steps', sa.Integer()),
        sa.Column('size_bytes', sa.BigInteger()),
        sa.Column('sha256', sa.String(64)),
    )
    under_way = sa.text('ended_at IS NULL')
    op.create_index(
        'ix_profiles_under_way', 'profiles', ['job_id'], sqlite_where=under_way, postgresql_where=under_way
    )
