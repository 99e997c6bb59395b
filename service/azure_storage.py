"""Where storages in Azure lie, and the credentials with which the service reaches them.

An `abfs://` URL names a container and its account.  The credential is the identity of the service's machine, or what a
file that only the service can read says of the account; a URL never holds one.
"""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainers.storage import StorageError
from trainers.storage_grants import is_brokered

#: Bytes of the file of credentials.
_MOST_BYTES = 2**20
#: A container, the host of its account (which the file may name instead), and a path.
_PLACE = re.compile(
    r"(?:abfss?|az)://(?P<container>[a-z0-9$][a-z0-9-]{1,62})(?:@(?P<host>[a-z0-9][a-z0-9.-]*))?(?P<root>(?:/[^?#]*)?)"
)
#: What the file may say of an account, of which it says one.
_KINDS = ("connection_string", "account_key", "client_id")
_FORM = '{"ACCOUNT": {"account_key": ".."}}, or connection_string or client_id in its place'


@dataclass(frozen=True, kw_only=True)
class AzurePlace:
    """What an `abfs://` URL says."""

    container: str
    #: Host of the account's blobs; None: the URL names no account.
    host: str | None
    #: Path in the container, without slashes around it.
    root: str

    @property
    def account(self) -> str | None:
        """The account that the URL names."""
        return None if self.host is None else self.host.partition(".")[0]


@dataclass(frozen=True, kw_only=True)
class AzureAccount:
    """How the service reaches an account: with one of the three, else as the identity of its machine."""

    name: str
    #: Address of its blobs; empty: the connection string says it.
    endpoint: str = ""
    connection_string: str = field(default="", repr=False)
    account_key: str = field(default="", repr=False)
    #: Of a user-assigned identity of the machine.
    client_id: str = ""


def azure_place(url: str) -> AzurePlace | None:
    """Where a storage in Azure lies, None for any other one.  Raises StorageError for what is no such URL."""
    if not is_brokered(url):
        return None
    found = _PLACE.fullmatch(url)
    if found is None:
        form = "abfs://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH, without a credential"
        raise StorageError(f"a URL of a storage in Azure is written as {form}")
    host = found["host"]
    return AzurePlace(
        container=found["container"],
        host=None if host is None else host.replace(".dfs.", ".blob.", 1),
        root=found["root"].strip("/"),
    )


def azure_account(place: AzurePlace, file: Path | None) -> AzureAccount:
    """How the account of a place is reached.  Raises StorageError when that, or the file, cannot be read."""
    known = {} if file is None else _read(file)
    name = place.account
    if name is None:
        if len(known) != 1:
            raise StorageError(
                f"the URL of the container {place.container!r} names no account; write"
                f" abfs://{place.container}@ACCOUNT.dfs.core.windows.net/PATH"
            )
        name = next(iter(known))
    return AzureAccount(name=name, endpoint=_endpoint(place, name), **known.get(name, {}))


def _endpoint(place: AzurePlace, account: str) -> str:
    return f"https://{place.host or f'{account}.blob.core.windows.net'}"


def _read(file: Path) -> dict[str, dict[str, str]]:
    """What the file says, by account."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise StorageError(
            f"the file of storage credentials {file} cannot be read: {error.strerror}"
        ) from None
    with os.fdopen(descriptor, "rb") as opened:
        status = os.fstat(descriptor)
        if (
            not stat.S_ISREG(status.st_mode)
            or status.st_mode & 0o077
            or status.st_uid not in (0, os.geteuid())
        ):
            raise StorageError(
                f"the file of storage credentials {file} has to be readable by the service's user alone: chmod 600"
            )
        content = opened.read(_MOST_BYTES)
    try:
        return _checked(json.loads(content))
    except (ValueError, RecursionError):
        # The error would quote what the file says.
        raise StorageError(f"the file of storage credentials {file} is no JSON of the form {_FORM}") from None


def _checked(said: Any) -> dict[str, dict[str, str]]:
    if not isinstance(said, dict):
        raise ValueError  # noqa: TRY004 - the caller says what is expected
    for one in said.values():
        if not (isinstance(one, dict) and len(one) == 1 and one.keys() <= set(_KINDS)):
            raise ValueError
        if not all(isinstance(value, str) and value for value in one.values()):
            raise ValueError
    return said


def filesystem_options(account: AzureAccount) -> Mapping[str, Any]:
    """Options of adlfs for an account.  Raises StorageError without Azure's clients."""
    if account.connection_string:
        return {"connection_string": account.connection_string}
    if account.account_key:
        return {"account_name": account.name, "account_key": account.account_key}
    try:
        from azure.identity.aio import ManagedIdentityCredential
    except ImportError as error:
        raise StorageError(f"storages in Azure need its clients, install remora[azure]: {error}") from error
    credential = ManagedIdentityCredential(client_id=account.client_id or None)
    return {"account_name": account.name, "credential": credential}
