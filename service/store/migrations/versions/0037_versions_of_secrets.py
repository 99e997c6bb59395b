"""The newest version that a secret of each name has or had."""

import sqlalchemy as sa
from alembic import op

revision = '0037'
down_revision = '0036'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'secret_versions',
        sa.Column('project', sa.String(63), primary_key=True),
        sa.Column('name', sa.String(63), primary_key=True),
        sa.Column('version', sa.BigInteger(), nullable=False),
    )
    op.execute(
        'INSERT INTO secret_versions (project, name, version) SELECT project, name, version FROM secrets'
    )
