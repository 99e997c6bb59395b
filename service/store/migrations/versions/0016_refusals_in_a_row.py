"""Refusals in a row, pools that operators reopened, and nodes by the job that they were bought for."""

import sqlalchemy as sa
from alembic import op

revision = '0016'
down_revision = '0015'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('refusals', sa.Column('at', sa.Double(), nullable=False, server_default='0'))
    op.add_column('refusals', sa.Column('tries', sa.Integer(), nullable=False, server_default='1'))
    op.create_table(
        'pool_reopenings',
        sa.Column('pool', sa.String(200), primary_key=True),
        sa.Column('at', sa.Double(), nullable=False),
    )
    op.create_index('ix_nodes_bought_for', 'nodes', ['bought_for'])


def downgrade() -> None:
    op.drop_index('ix_nodes_bought_for', 'nodes')
    op.drop_table('pool_reopenings')
    op.drop_column('refusals', 'tries')
    op.drop_column('refusals', 'at')
