"""What attempts have said of nodes that compute wrongly."""

import sqlalchemy as sa
from alembic import op

revision = '0043'
down_revision = '0038'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'sick_reports',
        sa.Column('attempt_id', sa.String(40), primary_key=True),
        sa.Column('address', sa.String(200), primary_key=True),
        sa.Column('project', sa.String(63), nullable=False),
        sa.Column('at', sa.Double(), nullable=False),
        sa.Column('message', sa.Text(), nullable=False),
        sa.Column('drained_at', sa.Double()),
    )
