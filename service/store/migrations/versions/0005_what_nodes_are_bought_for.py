"""What nodes cost and are bought for, where workers are, what the cloud refused, and what the budget has reached."""

import sqlalchemy as sa
from alembic import op

revision = '0005'
down_revision = '0004'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('budget_days',
    sa.Column('day', sa.String(length=10), nullable=False),
    sa.Column('step', sa.String(length=32), nullable=False),
    sa.PrimaryKeyConstraint('day')
    )
    op.create_table('refusals',
    sa.Column('offering', sa.String(length=200), nullable=False),
    sa.Column('until', sa.Double(), nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('offering')
    )
    op.add_column('jobs', sa.Column('budget_step', sa.String(length=32), nullable=True))
    op.add_column('attempts', sa.Column('workers', sa.JSON(), server_default='{}', nullable=False))
    op.add_column('attempts', sa.Column('short_since', sa.Double(), nullable=True))
    op.add_column('nodes', sa.Column('offering', sa.Text(), server_default='', nullable=False))
    op.add_column('nodes', sa.Column('price_per_hour', sa.Double(), server_default='0', nullable=False))
    op.add_column('nodes', sa.Column('fabric', sa.Text(), nullable=True))
    op.add_column('nodes', sa.Column('bought_for', sa.String(length=40), nullable=True))
    op.add_column('nodes', sa.Column('idle_since', sa.Double(), nullable=True))
    op.add_column('nodes', sa.Column('leaving_since', sa.Double(), nullable=True))
    op.add_column('nodes', sa.Column('deadline_at', sa.Double(), nullable=True))


def downgrade() -> None:
    for column in ('deadline_at', 'leaving_since', 'idle_since', 'bought_for', 'fabric', 'price_per_hour', 'offering'):
        op.drop_column('nodes', column)
    op.drop_column('attempts', 'short_since')
    op.drop_column('attempts', 'workers')
    op.drop_column('jobs', 'budget_step')
    op.drop_table('refusals')
    op.drop_table('budget_days')
