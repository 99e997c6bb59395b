"""Tokens, roles, the audit, and what belongs to which project."""

import sqlalchemy as sa
from alembic import op

revision = '0032'
down_revision = '0031'
branch_labels = None
depends_on = None

CODE = {'sqlite': "json_extract(spec, '$.code')", 'postgresql': "spec->>'code'"}


def upgrade() -> None:
    for table in ('jobs', 'arrays', 'schedules'):
        op.add_column(table, sa.Column('submitted_by', sa.Text()))
    op.create_index('ix_arrays_project_id', 'arrays', ['project', 'id'])
    op.create_index('ix_schedules_project_id', 'schedules', ['project', 'id'])
    op.add_column('models', sa.Column('project', sa.Text(), nullable=False, server_default=''))
    op.execute('UPDATE models SET project = (SELECT project FROM jobs WHERE jobs.id = models.job_id)')
    op.create_index('ix_models_project_name', 'models', ['project', 'name', 'version'])
    op.create_table(
        'bundle_holders',
        sa.Column('digest', sa.String(71), primary_key=True),
        sa.Column('holder', sa.String(300), primary_key=True),
    )
    # What jobs and schedules use belongs to their projects.
    code = CODE[op.get_bind().dialect.name]
    parts = ' UNION '.join(
        f"SELECT {code}, 'project:' || project FROM {table} WHERE {code} IS NOT NULL"  # noqa: S608
        for table in ('jobs', 'schedules')
    )
    op.execute(f'INSERT INTO bundle_holders (digest, holder) {parts}')  # noqa: S608
    tokens()
    op.create_table(
        'audit',
        sa.Column('id', sa.String(40), primary_key=True),
        sa.Column('at', sa.Double(), nullable=False),
        sa.Column('principal', sa.String(300), nullable=False),
        sa.Column('credential', sa.String(40)),
        sa.Column('address', sa.String(64)),
        sa.Column('agent', sa.String(200)),
        sa.Column('operation', sa.String(64), nullable=False),
        sa.Column('project', sa.String(63)),
        sa.Column('object', sa.String(200)),
        sa.Column('before', sa.JSON()),
        sa.Column('after', sa.JSON()),
        sa.Column('request_id', sa.String(64)),
        sa.Column('outcome', sa.String(16), nullable=False),
    )
    op.create_index('ix_audit_project_id', 'audit', ['project', 'id'])


def tokens() -> None:
    op.create_table(
        'tokens',
        sa.Column('id', sa.String(40), primary_key=True),
        sa.Column('digest', sa.String(64), nullable=False),
        sa.Column('name', sa.Text(), nullable=False),
        sa.Column('owner', sa.String(300), nullable=False),
        sa.Column('created_by', sa.String(300), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('expires_at', sa.Double()),
        sa.Column('revoked_at', sa.Double()),
        sa.Column('last_used_at', sa.Double()),
    )
    op.create_index('ix_tokens_owner', 'tokens', ['owner', 'id'])
    op.create_table(
        'token_grants',
        sa.Column('token_id', sa.String(40), sa.ForeignKey('tokens.id'), primary_key=True),
        sa.Column('project', sa.String(63), primary_key=True),
        sa.Column('role', sa.String(32), nullable=False),
    )
    op.create_index('ix_token_grants_project', 'token_grants', ['project', 'token_id'])
    op.create_table(
        'grants',
        sa.Column('subject', sa.String(300), primary_key=True),
        sa.Column('project', sa.String(63), primary_key=True),
        sa.Column('role', sa.String(32), nullable=False),
        sa.Column('created_by', sa.String(300), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
    )
    op.create_index('ix_grants_project', 'grants', ['project', 'subject'])
