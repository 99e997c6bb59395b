"""Versions of the operators' policies, and events of the whole cluster."""

import sqlalchemy as sa
from alembic import op

revision = '0003'
down_revision = '0002'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('policies',
    sa.Column('version', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('based_on', sa.Integer(), nullable=False),
    sa.Column('restores', sa.Integer(), nullable=True),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Column('author', sa.Text(), nullable=False),
    sa.Column('comment', sa.Text(), nullable=False),
    sa.Column('digest', sa.String(length=71), nullable=False),
    sa.Column('document', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('version')
    )
    op.create_table('cluster_events',
    sa.Column('seq', sa.BigInteger().with_variant(sa.Integer(), 'sqlite'), nullable=False),
    sa.Column('at', sa.Double(), nullable=False),
    sa.Column('kind', sa.Text(), nullable=False),
    sa.Column('message', sa.Text(), nullable=False),
    sa.Column('data', sa.JSON(), nullable=False),
    sa.PrimaryKeyConstraint('seq')
    )


def downgrade() -> None:
    op.drop_table('cluster_events')
    op.drop_table('policies')
