"""Rehearsed preemptions."""

import sqlalchemy as sa
from alembic import op

revision = '0004'
down_revision = '0003'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('drills',
    sa.Column('id', sa.String(length=40), nullable=False),
    sa.Column('node_ids', sa.JSON(), nullable=False),
    sa.Column('requested_at', sa.Double(), nullable=False),
    sa.Column('notice_s', sa.Double(), nullable=True),
    sa.Column('state', sa.String(length=32), nullable=False),
    sa.Column('message', sa.Text(), nullable=True),
    sa.Column('struck_at', sa.Double(), nullable=True),
    sa.Column('deadline_at', sa.Double(), nullable=True),
    sa.Column('noticed_at', sa.Double(), nullable=True),
    sa.Column('taken_at', sa.Double(), nullable=True),
    sa.Column('ended_at', sa.Double(), nullable=True),
    sa.Column('jobs', sa.JSON(), nullable=False),
    sa.PrimaryKeyConstraint('id')
    )
    op.create_index('ix_drills_open', 'drills', ['id'], unique=False, sqlite_where=sa.text('ended_at IS NULL'), postgresql_where=sa.text('ended_at IS NULL'))


def downgrade() -> None:
    op.drop_table('drills')
