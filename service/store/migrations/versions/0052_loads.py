"""How busy workers were in the last minutes."""

import sqlalchemy as sa
from alembic import op

revision = '0052'
down_revision = '0051'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'loads',
        sa.Column('job_id', sa.String(40), sa.ForeignKey('jobs.id'), primary_key=True),
        sa.Column('rank', sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column('place', sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column('at', sa.Double(), nullable=False),
        sa.Column('attempt', sa.Integer(), nullable=False),
        sa.Column('address', sa.String(200), nullable=False),
        sa.Column('cpu', sa.Double(), nullable=False),
        sa.Column('gpu', sa.Double()),
        sa.Column('gpus', sa.Integer(), nullable=False),
    )
