"""When owners asked what their workers are doing, and which drivers know of it."""

import sqlalchemy as sa
from alembic import op

revision = '0047'
down_revision = '0046'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('jobs', sa.Column('stacks_requested_at', sa.Double()))
    op.add_column('attempts', sa.Column('stacks_requested_at', sa.Double()))
