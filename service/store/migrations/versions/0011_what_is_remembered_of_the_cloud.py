"""Until when the cloud asked for a pause, and since when it cannot be seen."""

import sqlalchemy as sa
from alembic import op

revision = '0011'
down_revision = '0010'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('cloud',
    sa.Column('id', sa.Integer(), autoincrement=False, nullable=False),
    sa.Column('paused_until', sa.Double(), nullable=True),
    sa.Column('unseen_since', sa.Double(), nullable=True),
    sa.PrimaryKeyConstraint('id')
    )


def downgrade() -> None:
    op.drop_table('cloud')
