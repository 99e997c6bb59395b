"""The text of `retry.on_log_patterns` that an attempt's log had."""

import sqlalchemy as sa
from alembic import op

revision = '0023'
down_revision = '0022'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('attempts', sa.Column('log_match', sa.Text()))
