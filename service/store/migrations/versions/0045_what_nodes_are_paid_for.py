"""What attempts do with the nodes that they hold, and whose price is only assumed."""

import sqlalchemy as sa
from alembic import op

revision = '0045'
down_revision = '0044'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'phases',
        # The release before deletes jobs and does not know this table.
        sa.Column('job_id', sa.String(40), sa.ForeignKey('jobs.id', ondelete='CASCADE'), primary_key=True),
        sa.Column('attempt', sa.Integer, primary_key=True, autoincrement=False),
        sa.Column('number', sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column('began_at', sa.Double, nullable=False),
        sa.Column('phase', sa.String(32), nullable=False),
    )
    # Of what ran before nothing is known but that it ran: it counts as training.
    op.add_column('attempts', sa.Column('phase', sa.String(32)))
    op.add_column('attempts', sa.Column('phase_at', sa.Double))
    op.add_column('attempts', sa.Column('phase_number', sa.BigInteger, nullable=False, server_default='0'))
    op.add_column('attempts', sa.Column('trained_at', sa.Double))
    op.add_column('attempts', sa.Column('stalled_s', sa.Double, nullable=False, server_default='0'))
    op.add_column(
        'nodes', sa.Column('is_price_assumed', sa.Boolean, nullable=False, server_default=sa.false())
    )
    op.create_index('ix_uses_node_id', 'uses', ['node_id'])
