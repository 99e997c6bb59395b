"""Secrets of projects."""

import sqlalchemy as sa
from alembic import op

revision = '0033'
down_revision = '0032'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'secrets',
        sa.Column('project', sa.String(63), primary_key=True),
        sa.Column('name', sa.String(63), primary_key=True),
        sa.Column('version', sa.BigInteger(), nullable=False),
        sa.Column('source', sa.String(32), nullable=False),
        sa.Column('key_id', sa.String(40), nullable=False),
        sa.Column('ciphertext', sa.LargeBinary(), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('updated_at', sa.Double(), nullable=False),
        sa.Column('updated_by', sa.Text(), nullable=False, server_default=''),
    )
