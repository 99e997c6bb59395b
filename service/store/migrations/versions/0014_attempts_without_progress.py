"""How many attempts of a job were lost since its last progress, on nodes that lived."""

import sqlalchemy as sa
from alembic import op

revision = '0014'
down_revision = '0013'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('jobs', sa.Column('fruitless', sa.Integer(), nullable=False, server_default='0'))


def downgrade() -> None:
    op.drop_column('jobs', 'fruitless')
