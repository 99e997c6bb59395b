"""Specifications that are submitted again and again."""

import sqlalchemy as sa
from alembic import op

revision = '0030'
down_revision = '0029'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'schedules',
        sa.Column('id', sa.String(40), primary_key=True),
        sa.Column('name', sa.Text(), nullable=False),
        sa.Column('project', sa.Text(), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('spec', sa.JSON(), nullable=False),
        sa.Column('next_at', sa.Double(), nullable=False),
        sa.Column('key', sa.String(128)),
        sa.Column('body_digest', sa.String(64)),
        sa.UniqueConstraint('key', name='uq_schedules_key'),
    )
    op.create_index('ix_schedules_next_at', 'schedules', ['next_at'])
    op.create_table(
        'schedule_runs',
        sa.Column('schedule_id', sa.String(40), sa.ForeignKey('schedules.id'), primary_key=True),
        sa.Column('at', sa.Double(), primary_key=True),
        sa.Column('decided_at', sa.Double(), nullable=False),
        sa.Column('outcome', sa.String(16), nullable=False),
        sa.Column('message', sa.Text(), nullable=False),
        sa.Column('job_id', sa.String(40)),
        sa.Column('array_id', sa.String(40)),
    )
