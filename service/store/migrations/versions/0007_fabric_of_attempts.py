"""The fabric domain of an attempt."""

import sqlalchemy as sa
from alembic import op

revision = '0007'
down_revision = '0006'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('attempts', sa.Column('fabric', sa.Text(), nullable=True))


def downgrade() -> None:
    op.drop_column('attempts', 'fabric')
