"""What nodes were found to be before their first work."""

import sqlalchemy as sa
from alembic import op

revision = '0046'
down_revision = '0045'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('nodes', sa.Column('preflight_since', sa.Double()))
    op.add_column('nodes', sa.Column('preflight', sa.JSON()))
