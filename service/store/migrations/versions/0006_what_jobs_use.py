"""Which job used which part of which node, from when to when."""

import sqlalchemy as sa
from alembic import op

revision = '0006'
down_revision = '0005'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('uses',
    sa.Column('job_id', sa.String(length=40), nullable=False),
    sa.Column('node_id', sa.String(length=40), nullable=False),
    sa.Column('began_at', sa.Double(), nullable=False),
    sa.Column('attempt', sa.Integer(), nullable=False),
    sa.Column('workers', sa.Integer(), nullable=False),
    sa.Column('pool', sa.Text(), nullable=False),
    sa.Column('offering', sa.Text(), nullable=False),
    sa.Column('part', sa.Double(), nullable=False),
    sa.Column('price_per_hour', sa.Double(), nullable=False),
    sa.Column('ended_at', sa.Double(), nullable=True),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], ),
    sa.PrimaryKeyConstraint('job_id', 'node_id', 'began_at')
    )
    op.create_index('ix_uses_open', 'uses', ['job_id'], unique=False, sqlite_where=sa.text('ended_at IS NULL'),
                    postgresql_where=sa.text('ended_at IS NULL'))


def downgrade() -> None:
    op.drop_index('ix_uses_open', table_name='uses')
    op.drop_table('uses')
