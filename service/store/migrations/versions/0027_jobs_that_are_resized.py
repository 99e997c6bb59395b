"""Jobs that get another number of workers, and which drivers know of it."""

import sqlalchemy as sa
from alembic import op

revision = '0027'
down_revision = '0026'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('jobs', sa.Column('resized_at', sa.Double()))
    op.add_column('attempts', sa.Column('resized_at', sa.Double()))
