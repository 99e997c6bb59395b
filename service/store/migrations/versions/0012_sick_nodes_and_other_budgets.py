"""Nodes that were sick or never had a machine, and the budget under which a step was reached."""

import sqlalchemy as sa
from alembic import op

revision = '0012'
down_revision = '0011'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('nodes', sa.Column('sick_since', sa.Double()))
    op.add_column('nodes', sa.Column('launched_at', sa.Double()))
    op.add_column('budget_days', sa.Column('figures', sa.Text(), nullable=False, server_default=''))


def downgrade() -> None:
    op.drop_column('budget_days', 'figures')
    op.drop_column('nodes', 'launched_at')
    op.drop_column('nodes', 'sick_since')
