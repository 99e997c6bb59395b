"""The newest version that a secret of each name has or had, and by what the submitters of schedules have their roles."""

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
    op.add_column('schedules', sa.Column('credential', sa.String(40)))
    # NULL where it is not known, as for all that were stored before.
    op.add_column('schedules', sa.Column('groups', sa.JSON()))
    op.execute(
        "UPDATE schedules SET credential = substr(submitted_by, 7) WHERE submitted_by LIKE 'token:%'"
    )
    op.execute(
        'INSERT INTO secret_versions (project, name, version) SELECT project, name, version FROM secrets'
    )
