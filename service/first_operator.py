"""The token of a service's first operator, in a file of its home, so that there is someone who can give roles.

The text is written to a draft, then its row, then the draft gets the file's name: a process that is killed between any
two of these leaves what the next start completes, and no token of which no copy is left.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from pathlib import Path

import sqlalchemy as sa

from remora.client.credentials import OPERATOR_TOKEN_FILE, write_private
from remora.roles import EVERYWHERE, Role
from service.identities import tokens
from service.identities.principals import LOCAL
from service.identities.tokens import SECRET_BYTES, Presented, Standing, TokenRow
from service.private_home import close_to_others
from service.store import tokens as store
from service.store.database import Database
from service.store.ids import new_id

log = logging.getLogger(__name__)

NAME = "first operator"


def ensure(database: Database, home: Path, now: float) -> Path:
    """Make the file and its token unless both are there; `now` in seconds since 1970.  Returns the file's path.

    A token that was revoked, or has expired, stays in its file: operators do that on purpose.

    Raises OSError, StoreError and DBAPIError.
    """
    file = home / OPERATOR_TOKEN_FILE
    if (presented := _read(file)) is not None and _is_stored(database, presented, now):
        close_to_others(file)
        return file
    draft = file.with_suffix(".draft")
    presented = _read(draft)
    if presented is None:
        write_private(draft, tokens.text_of(new_id("tok", now), secrets.token_bytes(SECRET_BYTES)) + "\n")
        presented = _read(draft)
        assert presented is not None
    if not _is_stored(database, presented, now):
        row = _row(presented, now)
        database.transact(lambda connection: store.insert(connection, row))
    draft.replace(file)
    log.info("the token of the first operator is in %s; clients with this home use it", file)
    return file


def _read(file: Path) -> Presented | None:
    with contextlib.suppress(FileNotFoundError, UnicodeDecodeError):
        return tokens.read(file.read_text(encoding="utf-8").strip())
    return None


def _is_stored(database: Database, presented: Presented, now: float) -> bool:
    def look(connection: sa.Connection) -> bool:
        row = store.get(connection, presented.token_id)
        return tokens.standing(presented, row, now) is not Standing.UNKNOWN

    return database.query(look)


def _row(presented: Presented, now: float) -> TokenRow:
    return TokenRow(
        id=presented.token_id,
        digest=presented.digest,
        name=NAME,
        owner=f"token:{presented.token_id}",
        created_by=LOCAL.id,
        created_at=now,
        grants={EVERYWHERE: Role.OPERATOR},
    )
