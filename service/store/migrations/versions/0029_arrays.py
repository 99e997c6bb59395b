"""Many jobs that one specification describes."""

import sqlalchemy as sa
from alembic import op

revision = '0029'
down_revision = '0028'
branch_labels = None
depends_on = None

NEWS = sa.text('has_news')
IN_ARRAYS = sa.text('array_id IS NOT NULL')


def upgrade() -> None:
    op.create_table(
        'arrays',
        sa.Column('id', sa.String(40), primary_key=True),
        sa.Column('name', sa.Text(), nullable=False),
        sa.Column('project', sa.Text(), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('spec', sa.JSON(), nullable=False),
        sa.Column('size', sa.Integer(), nullable=False),
        sa.Column('most_at_once', sa.Integer()),
        sa.Column('has_news', sa.Boolean(), nullable=False, server_default=sa.false()),
    )
    op.create_index('ix_arrays_news', 'arrays', ['id'], sqlite_where=NEWS, postgresql_where=NEWS)
    op.add_column('jobs', sa.Column('array_id', sa.String(40)))
    op.add_column('jobs', sa.Column('array_index', sa.Integer()))
    op.add_column('jobs', sa.Column('parameters', sa.JSON()))
    op.add_column('jobs', sa.Column('is_held', sa.Boolean(), nullable=False, server_default=sa.false()))
    op.create_index(
        'ix_jobs_array',
        'jobs',
        ['array_id', 'array_index'],
        sqlite_where=IN_ARRAYS,
        postgresql_where=IN_ARRAYS,
    )
