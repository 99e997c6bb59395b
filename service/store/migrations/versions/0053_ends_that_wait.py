"""Ends of attempts that wait for what their nodes report, which outlive their drivers."""

import sqlalchemy as sa
from alembic import op

revision = '0053'
down_revision = '0052'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('attempts', sa.Column('held_end', sa.JSON(none_as_null=True)))
