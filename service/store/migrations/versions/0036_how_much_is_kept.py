"""How much is kept of each project and of each principal."""

import json

import sqlalchemy as sa
from alembic import op

revision = '0036'
down_revision = '0034'
branch_labels = None
depends_on = None

#: What is there, by holder and kind; log lines, which may be many, are counted by the next controller.
COUNTED = (
    "SELECT 'project:' || project, 'secrets', count(*) FROM secrets GROUP BY project",
    "SELECT 'project:' || project, 'schedules', count(*) FROM schedules GROUP BY project",
    "SELECT 'project:' || project, 'tokens', count(*) FROM token_grants JOIN tokens ON tokens.id = token_id"
    " WHERE revoked_at IS NULL AND project <> '*' GROUP BY project",
    "SELECT created_by, 'tokens', count(*) FROM tokens WHERE revoked_at IS NULL GROUP BY created_by",
)


OF_OUTPUTS = (
    "SELECT 'project:' || project, 'output_bytes', sum(size_bytes) FROM outputs JOIN jobs ON jobs.id = outputs.job_id"
    ' GROUP BY project'
)


def upgrade() -> None:
    op.create_table(
        'holdings',
        sa.Column('holder', sa.String(300), primary_key=True),
        sa.Column('kind', sa.String(32), primary_key=True),
        sa.Column('amount', sa.BigInteger(), nullable=False),
    )
    for counted in COUNTED:
        op.execute(f'INSERT INTO holdings (holder, kind, amount) {counted}')  # noqa: S608
    op.add_column('outputs', sa.Column('size_bytes', sa.BigInteger(), nullable=False, server_default='0'))
    measure_outputs()
    op.execute(f'INSERT INTO holdings (holder, kind, amount) {OF_OUTPUTS}')  # noqa: S608
    # Last, as it locks what running processes write.
    op.add_column('bundles', sa.Column('size_bytes', sa.BigInteger(), nullable=False, server_default='0'))
    op.add_column('attempts', sa.Column('dropped_lines', sa.BigInteger(), nullable=False, server_default='0'))


def measure_outputs() -> None:
    outputs = sa.table('outputs', sa.column('job_id'), sa.column('files', sa.JSON), sa.column('size_bytes'))
    connection = op.get_bind()
    # One after the other, as lists of files may be large.
    for job_id in connection.execute(sa.select(outputs.c.job_id)).scalars().all():
        mine = outputs.c.job_id == job_id
        files = connection.execute(sa.select(outputs.c.files).where(mine)).scalar_one()
        files = json.loads(files) if isinstance(files, str) else files
        size = sum(one['size_bytes'] for one in files.values())
        connection.execute(sa.update(outputs).where(mine).values(size_bytes=size))
