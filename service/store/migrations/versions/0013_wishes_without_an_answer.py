"""Since when, and how many times, a cloud gave no clear answer to the wish for a node."""

import sqlalchemy as sa
from alembic import op

revision = '0013'
down_revision = '0012'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('nodes', sa.Column('unanswered_since', sa.Double()))
    op.add_column('nodes', sa.Column('unanswered', sa.Integer(), nullable=False, server_default='0'))


def downgrade() -> None:
    op.drop_column('nodes', 'unanswered')
    op.drop_column('nodes', 'unanswered_since')
