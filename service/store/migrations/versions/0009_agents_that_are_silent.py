"""Nodes whose agents are silent."""

import sqlalchemy as sa
from alembic import op

revision = '0009'
down_revision = '0008'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('nodes', sa.Column('agent_silent_since', sa.Double()))


def downgrade() -> None:
    op.drop_column('nodes', 'agent_silent_since')
