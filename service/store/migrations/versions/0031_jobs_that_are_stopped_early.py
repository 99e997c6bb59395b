"""Jobs of arrays that are stopped early."""

import sqlalchemy as sa
from alembic import op

revision = '0031'
down_revision = '0030'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('jobs', sa.Column('stop_rule', sa.JSON()))
    op.add_column('jobs', sa.Column('compared_at', sa.BigInteger()))
    op.add_column('jobs', sa.Column('best_value', sa.Double()))
    op.add_column('jobs', sa.Column('stopped_early', sa.Text()))
    op.create_table(
        'array_scores',
        sa.Column('array_id', sa.String(40), primary_key=True),
        sa.Column('step', sa.BigInteger(), primary_key=True, autoincrement=False),
        sa.Column('job_id', sa.String(40), primary_key=True),
        sa.Column('value', sa.Double(), nullable=False),
    )
