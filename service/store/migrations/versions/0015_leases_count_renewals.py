"""Leases count their renewals: clocks of two machines are not compared, so a time of expiry would mean nothing."""

import sqlalchemy as sa
from alembic import op

revision = '0015'
down_revision = '0014'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('leases', sa.Column('renewals', sa.BigInteger(), nullable=False, server_default='0'))
    op.drop_column('leases', 'expires_at')


def downgrade() -> None:
    op.add_column('leases', sa.Column('expires_at', sa.Double(), nullable=False, server_default='0'))
    op.drop_column('leases', 'renewals')
