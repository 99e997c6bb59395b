"""Alerts: whom to notify of what, and what they have reported."""

import sqlalchemy as sa
from alembic import op

revision = '0048'
down_revision = '0047'
branch_labels = None
depends_on = None

_SEQ = sa.BigInteger().with_variant(sa.Integer(), 'sqlite')


def upgrade() -> None:
    op.create_table(
        'alerts',
        sa.Column('id', sa.String(40), primary_key=True),
        sa.Column('project', sa.String(63), nullable=False),
        sa.Column('owner', sa.String(300), nullable=False),
        sa.Column('credential', sa.String(40)),
        sa.Column('groups', sa.JSON()),
        sa.Column('is_own_only', sa.Boolean(), nullable=False),
        sa.Column('kinds', sa.JSON(), nullable=False),
        sa.Column('channel', sa.String(32), nullable=False),
        sa.Column('address', sa.String(300), nullable=False),
        sa.Column('key_id', sa.String(40), nullable=False),
        sa.Column('ciphertext', sa.LargeBinary(), nullable=False),
        sa.Column('wait_s', sa.Double(), nullable=False),
        sa.Column('budget_percents', sa.JSON(), nullable=False),
        sa.Column('slow_factor', sa.Double(), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('due_at', sa.Double()),
        sa.Column('failures', sa.Integer(), nullable=False, server_default='0'),
        sa.Column('error', sa.Text()),
        sa.Column('ended_at', sa.Double()),
    )
    op.create_index('ix_alerts_project_id', 'alerts', ['project', 'id'])
    due = sa.text('due_at IS NOT NULL')
    op.create_index('ix_alerts_due', 'alerts', ['due_at'], sqlite_where=due, postgresql_where=due)
    op.create_table(
        'alert_facts',
        sa.Column('seq', _SEQ, primary_key=True),
        sa.Column('kind', sa.String(32), nullable=False),
        sa.Column('at', sa.Double(), nullable=False),
        sa.Column('project', sa.Text(), nullable=False),
        sa.Column('submitted_by', sa.Text()),
        sa.Column('about', sa.String(40), nullable=False),
        sa.Column('name', sa.Text(), nullable=False),
        sa.Column('event', sa.Text(), nullable=False),
        sa.Column('event_seq', sa.BigInteger(), nullable=False),
        sa.Column('attempt', sa.Integer()),
        sa.Column('message', sa.Text(), nullable=False),
        sa.Column('data', sa.JSON(), nullable=False),
    )
    op.create_table(
        'alert_watches',
        sa.Column('alert_id', sa.String(40), sa.ForeignKey('alerts.id', ondelete='CASCADE'), primary_key=True),
        sa.Column('kind', sa.String(32), primary_key=True),
        sa.Column('about', sa.String(40), primary_key=True),
        sa.Column('due_at', sa.Double(), nullable=False),
        sa.Column('state', sa.JSON(), nullable=False),
    )
    op.create_index('ix_alert_watches_due_at', 'alert_watches', ['due_at'])
    op.create_table(
        'notifications',
        sa.Column('seq', _SEQ, primary_key=True),
        sa.Column('id', sa.String(40), nullable=False),
        sa.Column('alert_id', sa.String(40), sa.ForeignKey('alerts.id', ondelete='CASCADE'), nullable=False),
        sa.Column('key', sa.String(200), nullable=False),
        sa.Column('at', sa.Double(), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('kind', sa.String(32), nullable=False),
        sa.Column('message', sa.Text(), nullable=False),
        sa.Column('data', sa.JSON(), nullable=False),
        sa.Column('state', sa.String(32), nullable=False),
        sa.Column('tries', sa.Integer(), nullable=False, server_default='0'),
        sa.Column('error', sa.Text()),
        sa.Column('settled_at', sa.Double()),
        sa.UniqueConstraint('alert_id', 'key', name='uq_notifications_alert_id_key'),
    )
    pending = sa.text("state = 'pending'")
    op.create_index(
        'ix_notifications_pending',
        'notifications',
        ['alert_id', 'seq'],
        sqlite_where=pending,
        postgresql_where=pending,
    )
    op.create_index('ix_notifications_alert_id_seq', 'notifications', ['alert_id', 'seq'])
    op.create_index('ix_notifications_settled_at', 'notifications', ['settled_at'])
