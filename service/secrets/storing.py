"""Stores secrets, encrypted with the newest key; the key is on the disk before anything is encrypted with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from service.queue.secrets import MAX_SECRETS_OF_PROJECT, SecretPlace, SecretRow, SecretSource
from service.secrets.encryption import Key, seal
from service.secrets.key_file import KeyFile, KeysUnusable
from service.store import secret_rows as store
from service.store.database import Database


@dataclass(frozen=True, kw_only=True)
class NewSecret:
    """What is to be stored."""

    project: str
    name: str
    source: SecretSource
    #: The value, or the address of a secret in a key vault.
    content: str = field(repr=False)
    updated_by: str = ""


def store_secret(
    database: Database,
    key_file: KeyFile,
    new: NewSecret,
    now: float,
    also: Callable[[sa.Connection, SecretRow | None, SecretRow], None] = lambda *_: None,
    *,
    most: Callable[[sa.Connection], int] = lambda _: MAX_SECRETS_OF_PROJECT,
) -> SecretRow:
    """Store a secret, as the next version of the one of its name if there is one; may wait for a rotation.

    `also` is done in the same transaction, with what was there before; the project has at most `most` secrets.  Raises
    KeysUnusable, LimitReached.
    """
    with key_file.locked():
        key = newest_key(database, key_file)

        def work(connection: sa.Connection) -> SecretRow:
            before = store.lock(connection, new.project, new.name)
            row = _next(connection, key, before, new, now)
            store.put(connection, row, most(connection))
            also(connection, before, row)
            return row

        try:
            return database.transact(work)
        except IntegrityError:
            # The API of another machine stored the first version at the same moment.
            return database.transact(work)


def newest_key(database: Database, key_file: KeyFile) -> Key:
    """What new rows are encrypted with, for who has the lock of the key file.  Raises KeysUnusable."""
    keys = key_file.read()
    if not keys:
        # Never where rows need the key of a lost file: its copy has to come back, and not another key.
        if database.query(store.is_any):
            raise KeysUnusable(
                f"the key file {key_file.path} is gone, and there are secrets that need it; restore it from its"
                " copy, or delete all secrets and alerts"
            )
        keys = key_file.add()
    return keys[0]


def _next(
    connection: sa.Connection, key: Key, before: SecretRow | None, new: NewSecret, now: float
) -> SecretRow:
    # Also where the one before was deleted: what was stored of it must not stand for this one.
    newest = store.newest_version(connection, new.project, new.name)
    # The row may be of a process of the release before, which remembers no versions.
    version = max(newest, 0 if before is None else before.version) + 1
    place = SecretPlace(new.project, new.name, version, new.source)
    sealed = seal(key, place, new.content.encode())
    return SecretRow(
        project=new.project,
        name=new.name,
        version=place.version,
        source=new.source,
        key_id=sealed.key_id,
        ciphertext=sealed.ciphertext,
        created_at=now if before is None else before.created_at,
        updated_at=now,
        updated_by=new.updated_by,
    )


def sealed_again(row: SecretRow, key: Key, content: bytes) -> SecretRow:
    """The same secret, encrypted with another key."""
    sealed = seal(key, row.place, content)
    return replace(row, key_id=sealed.key_id, ciphertext=sealed.ciphertext)
