"""What the processes of a job may reach in a storage, and the grants with which the service lets them (pure).

A process of a node holds no credential of a storage in a cloud.  It asks through its driver, and the service, which
holds one, answers with a grant: tokens for names of that job alone, for an hour at most.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

#: Seconds for which a token is valid, at most, by the clock of the storage.
TOKEN_S = 3600.0
#: Seconds after which its holder asks for another one: the rest is for clocks that differ and for long transfers.
RENEWED_S = 1800.0
#: Seconds until a process hears that there is no answer.
ANSWERED_S = 30.0
#: Names in one request.
MOST_NAMES = 1000
#: Files that one list may have.
MOST_LISTED = 100_000
#: Protocols of fsspec for blobs of Azure.
_AZURE = re.compile(r"(abfss?|az)://")

#: `write` includes creating and deleting.
Action = Literal["read", "write", "list"]


def is_brokered(url: str) -> bool:
    """True for a storage that processes of nodes reach by grants only: one in Azure."""
    return _AZURE.match(url) is not None


@dataclass(frozen=True, kw_only=True)
class Scope:
    """Names below the root of a storage that may be reached; a name stands for itself and all below, "" for all."""

    reads: tuple[str, ...] = ()
    #: These may be read, too.
    writes: tuple[str, ...] = ()

    def covering(self, name: str, action: Action) -> str | None:
        """The widest of its names that covers this one; None when it may not be reached in this way."""
        asked = self.writes if action == "write" else (*self.writes, *self.reads)
        found = [one for one in asked if _is_within(name, one)]
        return min(found, key=len) if found else None

    def joined(self, other: Scope) -> Scope:
        """What either of them allows."""
        return Scope(
            reads=tuple(dict.fromkeys((*self.reads, *other.reads))),
            writes=tuple(dict.fromkeys((*self.writes, *other.writes))),
        )


def _is_within(name: str, prefix: str) -> bool:
    return not prefix or name == prefix or name.startswith(f"{prefix}/")


#: By the URL of the storage.
Scopes = Mapping[str, Scope]


@dataclass(frozen=True, kw_only=True)
class StorageRequest:
    """What a process of a job asks of the service."""

    url: str
    action: Action
    #: Names in the storage; of a list the folder or file, "" for the root.
    names: tuple[str, ...]
    #: Of a list: all that lies below, not only directly.
    is_deep: bool = True


@dataclass(frozen=True, kw_only=True)
class StorageGrant:
    """Where a storage is, and with which tokens its holder reaches which names there for a while."""

    #: Address of the account, and the container in it.
    endpoint: str
    container: str
    #: Name of the storage's root in the container; may be empty.
    root: str
    #: Signatures by the names that they are for; a name in `folders` is for all below it.
    tokens: Mapping[str, str] = field(repr=False)
    folders: frozenset[str] = frozenset()

    def token(self, name: str) -> str | None:
        """The signature for a name, None without one."""
        if name in self.tokens and name not in self.folders:
            return self.tokens[name]
        return next((self.tokens[one] for one in self.folders if name.startswith(f"{one}/")), None)


class Entry(NamedTuple):
    """A file or folder of a list."""

    #: Relative to the storage's root.
    name: str
    size_bytes: int
    #: Changes when the file is written to.
    tag: str
    is_folder: bool


@dataclass(frozen=True, kw_only=True)
class StorageAnswer:
    """What the service answers: one of the three."""

    grant: StorageGrant | None = None
    #: Of a list; nothing has the name when it is empty.
    entries: tuple[Entry, ...] | None = None
    #: Why it grants nothing, in one sentence.
    refusal: str | None = None


#: Parts of an address or of a configuration that let who reads them reach a storage.
_SECRETS = re.compile(r"(?i)\b(sig|AccountKey|SharedAccessSignature)=[^&;\s'\"<>)]+")


def without_secrets(text: str) -> str:
    """The text without signatures and keys of a storage."""
    return _SECRETS.sub(lambda found: f"{found.group(1)}=***", text)
