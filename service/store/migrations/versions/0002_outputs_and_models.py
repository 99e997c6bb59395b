"""Outputs of jobs, and models made of them."""

import sqlalchemy as sa
from alembic import op

revision = '0002'
down_revision = '0001'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('outputs',
    sa.Column('job_id', sa.String(length=40), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('committed_at', sa.Double(), nullable=False),
    sa.Column('location', sa.Text(), nullable=False),
    sa.Column('files', sa.JSON(), nullable=False),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], ),
    sa.PrimaryKeyConstraint('job_id')
    )
    op.create_table('models',
    sa.Column('name', sa.String(length=63), nullable=False),
    sa.Column('version', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('job_id', sa.String(length=40), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('output', sa.String(length=63), nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Column('digest', sa.String(length=71), nullable=False),
    sa.Column('code', sa.String(length=71), nullable=True),
    sa.Column('command', sa.JSON(), nullable=False),
    sa.Column('location', sa.Text(), nullable=False),
    sa.Column('files', sa.JSON(), nullable=False),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], ),
    sa.PrimaryKeyConstraint('name', 'version')
    )


def downgrade() -> None:
    op.drop_table('models')
    op.drop_table('outputs')
