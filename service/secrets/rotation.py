"""Encrypts all secrets, and where alerts are sent to, with a new key.

A new key is put into the key file first, then rows are written again in batches, and last the old keys leave the file.
Each step can be the last one of this process: a file with several keys says that a rotation is under way, and the next
one goes on with it in place of beginning another.
"""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from service.secrets.alert_contents import open_content, seal_content
from service.secrets.encryption import CannotOpen, Key, Sealed, unseal
from service.secrets.key_file import KeyFile, KeysUnusable
from service.secrets.storing import sealed_again
from service.store import alerts
from service.store import secret_rows as store
from service.store.database import Database

#: Rows of one transaction.
BATCH = 50


@dataclass(frozen=True, kw_only=True)
class Rotation:
    """What a rotation did."""

    key_id: str
    rewritten: int
    #: One that was interrupted was brought to its end.
    is_resumed: bool
    #: `project/name` of secrets, and `project/id` of alerts, that cannot be decrypted, which are left as they are.
    unreadable: tuple[str, ...] = ()


def rotate(database: Database, key_file: KeyFile) -> Rotation:
    """Have all secrets encrypted with a key that is new, or that an interrupted rotation has made.

    Raises KeysUnusable.
    """
    with key_file.locked():
        before = key_file.read()
        if not before and database.query(store.is_any):
            raise KeysUnusable(
                f"the key file {key_file.path} is gone; restore it from its copy, or delete all secrets"
            )
        is_resumed = len(before) > 1
        keys = before if is_resumed else key_file.add()
        rewritten, unreadable = 0, list[str]()
        after: tuple[str, str] | None = None
        while (done := _rewrite(database, keys, after)) is not None:
            after = done.last
            rewritten += done.rewritten
            unreadable += done.unreadable
        last = ""
        while (of_alerts := _rewrite_alerts(database, keys, last)) is not None:
            last = of_alerts.last[1]
            rewritten += of_alerts.rewritten
            unreadable += of_alerts.unreadable
        key_file.write(keys[:1])
        return Rotation(
            key_id=keys[0].id, rewritten=rewritten, is_resumed=is_resumed, unreadable=tuple(unreadable)
        )


@dataclass(frozen=True)
class _Batch:
    last: tuple[str, str]
    rewritten: int
    unreadable: list[str]


def _rewrite(database: Database, keys: tuple[Key, ...], after: tuple[str, str] | None) -> _Batch | None:
    def work(connection: sa.Connection) -> _Batch | None:
        rows = store.of_other_keys(connection, keys[0].id, after, BATCH)
        unreadable = []
        for row in rows:
            try:
                content = unseal(keys, row.place, Sealed(row.key_id, row.ciphertext))
            except CannotOpen:
                unreadable.append(f"{row.project}/{row.name}")
            else:
                store.put(connection, sealed_again(row, keys[0], content))
        if not rows:
            return None
        return _Batch((rows[-1].project, rows[-1].name), len(rows) - len(unreadable), unreadable)

    return database.transact(work)


def _rewrite_alerts(database: Database, keys: tuple[Key, ...], after: str) -> _Batch | None:
    def work(connection: sa.Connection) -> _Batch | None:
        rows = alerts.of_other_keys(connection, keys[0].id, after, BATCH)
        unreadable = []
        for row in rows:
            try:
                content = open_content(keys, row)
            except CannotOpen:
                unreadable.append(f"{row.project}/{row.id}")
            else:
                sealed = seal_content(keys[0], row.project, row.id, content)
                alerts.seal_again(connection, row.id, sealed.key_id, sealed.ciphertext)
        if not rows:
            return None
        return _Batch((rows[-1].project, rows[-1].id), len(rows) - len(unreadable), unreadable)

    return database.transact(work)
