"""What Ray programs wait for, and which project pays for the nodes that are bought for them."""

import sqlalchemy as sa
from alembic import op

revision = '0038'
down_revision = '0037'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'ray_requests',
        sa.Column('id', sa.String(40), primary_key=True),
        sa.Column('project', sa.String(63), nullable=False),
        sa.Column('kind', sa.String(32), nullable=False),
        sa.Column('strategy', sa.String(32)),
        sa.Column('resources', sa.JSON(), nullable=False),
        sa.Column('count', sa.Integer(), nullable=False),
        sa.Column('since', sa.Double(), nullable=False),
        sa.Column('is_refused', sa.Boolean(), nullable=False),
        sa.Column('reason', sa.Text(), nullable=False),
    )
    op.add_column('nodes', sa.Column('project', sa.String(63)))
