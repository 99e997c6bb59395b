"""Shells in workers of running jobs, and what is typed and printed until it is taken."""

import sqlalchemy as sa
from alembic import op

revision = '0051'
down_revision = '0050'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'shells',
        sa.Column('job_id', sa.String(40), sa.ForeignKey('jobs.id'), primary_key=True),
        sa.Column('number', sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column('attempt', sa.Integer(), nullable=False),
        sa.Column('rank', sa.Integer(), nullable=False),
        sa.Column('principal', sa.Text(), nullable=False),
        sa.Column('credential', sa.Text()),
        sa.Column('command', sa.JSON(), nullable=False),
        sa.Column('term', sa.String(64), nullable=False),
        sa.Column('rows', sa.Integer()),
        sa.Column('columns', sa.Integer()),
        sa.Column('requested_at', sa.Double(), nullable=False),
        sa.Column('seen_at', sa.Double(), nullable=False),
        sa.Column('input_at', sa.Double(), nullable=False),
        sa.Column('input_seq', sa.Integer(), nullable=False),
        sa.Column('close_requested_at', sa.Double()),
        sa.Column('opened_at', sa.Double()),
        sa.Column('output_at', sa.Double()),
        sa.Column('output_seq', sa.Integer(), nullable=False),
        sa.Column('ended_at', sa.Double()),
        sa.Column('message', sa.Text()),
        sa.Column('exit_code', sa.Integer()),
        sa.Column('cleared_at', sa.Double()),
    )
    under_way = sa.text('cleared_at IS NULL')
    op.create_index(
        'ix_shells_under_way', 'shells', ['job_id'], sqlite_where=under_way, postgresql_where=under_way
    )
    op.create_table(
        'shell_pieces',
        sa.Column('job_id', sa.String(40), primary_key=True),
        sa.Column('number', sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column('is_output', sa.Boolean(), primary_key=True, autoincrement=False),
        sa.Column('seq', sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column('stream', sa.Integer(), nullable=False),
        sa.Column('content', sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(['job_id', 'number'], ['shells.job_id', 'shells.number']),
    )
