"""Tokens of issuers whose sessions ended by a sign-out."""

import sqlalchemy as sa
from alembic import op

revision = '0054'
down_revision = '0053'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('signed_out',
    sa.Column('digest', sa.String(length=64), nullable=False),
    sa.Column('until', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('digest', name=op.f('pk_signed_out'))
    )
    op.create_index('ix_signed_out_until', 'signed_out', ['until'], unique=False)
