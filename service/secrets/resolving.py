"""The values of an attempt's secrets, as they are when it starts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import sqlalchemy as sa

from service.queue.secrets import SecretRow, SecretSource
from service.secrets.encryption import CannotOpen, KeyUnknown, Sealed, unseal
from service.secrets.key_file import KeyFile
from service.store import secret_rows as store
from service.store.database import Database

#: Reads of rows and keys, when a rotation comes between the two.
_TRIES = 3


class SecretMissing(Exception):
    """The project has no such secret any more; the message is one sentence."""


@dataclass(frozen=True)
class Resolved:
    """The values of secrets."""

    #: Those that are here, by name.
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Addresses of those that are in a key vault, by name.
    in_vaults: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, int] = field(default_factory=dict)


def resolve(database: Database, key_file: KeyFile, project: str, names: Collection[str]) -> Resolved:
    """What a project's secrets of these names are now.  Raises SecretMissing, CannotOpen, KeysUnusable."""
    for left in range(_TRIES - 1, -1, -1):
        rows = database.query(lambda connection: _newest(connection, project, names))
        known = {row.name for row in rows}
        if absent := [name for name in names if name not in known]:
            raise SecretMissing(store.missing(project, absent[0]))
        try:
            return _opened(rows, key_file)
        except KeyUnknown:
            # A rotation may have ended since the rows were read.
            if not left:
                raise
    raise AssertionError("unreachable: the last try returns or raises")


def _newest(connection: sa.Connection, project: str, names: Collection[str]) -> list[SecretRow]:
    """The rows of these secrets.  Raises CannotOpen for one that was there before and was put back."""
    rows = store.of_project(connection, project, names)
    for row in rows:
        # A process of the release before, during an upgrade, writes the row alone: then it is the newest.
        if row.version < store.newest_version(connection, project, row.name):
            raise CannotOpen(
                f"the secret {row.name} of the project {project} cannot be used: its row is one of before, which"
                " was put back; set it again"
            )
    return rows


def _opened(rows: list[SecretRow], key_file: KeyFile) -> Resolved:
    keys = key_file.read()
    contents = {
        row.name: unseal(keys, row.place, Sealed(row.key_id, row.ciphertext)).decode() for row in rows
    }
    vaults = {row.name for row in rows if row.source is SecretSource.KEY_VAULT}
    return Resolved(
        values={name: content for name, content in contents.items() if name not in vaults},
        in_vaults={name: content for name, content in contents.items() if name in vaults},
        versions={row.name: row.version for row in rows},
    )
