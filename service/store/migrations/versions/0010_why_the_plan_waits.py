"""What the newest plan does not do for pools, nodes and running jobs, and why."""

import sqlalchemy as sa
from alembic import op

revision = '0010'
down_revision = '0009'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('waits',
    sa.Column('kind', sa.String(length=32), nullable=False),
    sa.Column('about', sa.String(length=64), nullable=False),
    sa.Column('place', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('since', sa.Double(), nullable=False),
    sa.Column('reason', sa.Text(), nullable=False),
    sa.PrimaryKeyConstraint('kind', 'about', 'place')
    )
    op.add_column('jobs', sa.Column('why_short', sa.Text()))


def downgrade() -> None:
    op.drop_column('jobs', 'why_short')
    op.drop_table('waits')
