"""What is counted of the reports of a job whose array stops jobs by policies of Azure ML."""

import sqlalchemy as sa
from alembic import op

revision = '0034'
down_revision = '0033'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('jobs', sa.Column('metric_reports', sa.BigInteger(), nullable=False, server_default='0'))
    op.add_column('jobs', sa.Column('metric_sum', sa.Double(), nullable=False, server_default='0'))
    op.add_column('jobs', sa.Column('metric_step', sa.BigInteger()))
