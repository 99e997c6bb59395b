"""Answers what processes of jobs ask of storages in Azure: tokens and lists, for names of their own job alone.

The service's own credential signs the tokens and never leaves this process.  Where the account has a hierarchical
namespace a token is for a folder of the job; elsewhere Azure knows no such token, and each is for one file.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

from service.azure_storage import AzureAccount, AzurePlace, azure_account, azure_place
from trainers.confined_folders import OutsideFolder, parts_of
from trainers.job_storage import bundle_file
from trainers.plan import BuildAhead
from trainers.storage import StorageError
from trainers.storage_grants import (
    MOST_LISTED,
    MOST_NAMES,
    TOKEN_S,
    Entry,
    Scope,
    Scopes,
    StorageAnswer,
    StorageGrant,
    StorageRequest,
    is_brokered,
    without_secrets,
)

log = logging.getLogger(__name__)

#: Seconds for which a key for signatures is asked for, and after which the next one is: tokens end before it does.
_KEY_S, _KEY_RENEWED_S = 6 * 3600.0, 3600.0
#: As Azure writes them, in its order: read, add, create, write, delete.
_PERMISSIONS = {"read": "r", "write": "rcwd"}


@dataclass
class _Account:
    """An account that is in use."""

    place: AzurePlace
    name: str
    client: Any
    #: Signs; None: a key of the service's identity does, which is renewed.
    key: str | None
    has_folders: bool
    user_key: Any = None
    user_key_at: float = 0.0
    #: Held while a key is asked for.
    lock: threading.Lock = field(default_factory=threading.Lock)


class StorageBroker:
    """The one place that signs.  Thread-safe."""

    def __init__(
        self,
        file: Path | None,
        monotonic: Callable[[], float] = time.monotonic,
        connect: Callable[[AzureAccount], Any] | None = None,
    ) -> None:
        """`file` has the credentials; `connect` makes Azure's client for an account."""
        self._file, self._monotonic = file, monotonic
        self._connect = connect or _connected
        self._accounts: dict[str, _Account] = {}
        #: By URL: an account that does not answer holds up the jobs that use it, and no others.
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def answer(self, scopes: Scopes, request: StorageRequest) -> StorageAnswer:
        """What a process of a job with these scopes is granted; does not raise."""
        why = why_not(scopes, request)
        if why is not None:
            log.warning("a request for storage was refused: %s", why)
            return StorageAnswer(refusal=why)
        try:
            account = self._account(request.url)
            if request.action == "list":
                return StorageAnswer(entries=tuple(_listed(account, request)))
            return StorageAnswer(grant=self._grant(account, scopes, request))
        except Exception as error:  # Azure's clients have errors of many kinds
            text = without_secrets(str(error).partition("\n")[0])[:300]
            log.warning("the storage of a job cannot be granted: %s", text)
            return StorageAnswer(refusal=f"the service cannot reach the storage: {text}")

    def _account(self, url: str) -> _Account:
        with self._locks[url]:
            known = self._accounts.get(url)
            if known is None:
                place = azure_place(url)
                if place is None:
                    raise StorageError("it is no storage in Azure")
                given = azure_account(place, self._file)
                client = self._connect(given)
                known = _Account(
                    place=place,
                    name=client.account_name,
                    client=client,
                    key=getattr(client.credential, "account_key", None),
                    has_folders=bool(client.get_account_information().get("is_hns_enabled")),
                )
                self._accounts[url] = known
            return known

    def _grant(self, account: _Account, scopes: Scopes, request: StorageRequest) -> StorageGrant:
        sign = partial(_sign, account, self._signing_key(account), _PERMISSIONS[request.action])
        tokens: dict[str, str] = {}
        folders: set[str] = set()
        for name in request.names:
            covering = scopes[request.url].covering(name, request.action)
            if account.has_folders and covering and covering != name:
                if covering not in folders:
                    folders.add(covering)
                    tokens[covering] = sign(covering, is_folder=True)
            else:
                tokens[name] = sign(name, is_folder=False)
        return StorageGrant(
            endpoint=_endpoint(account.client),
            container=account.place.container,
            root=account.place.root,
            tokens=tokens,
            folders=frozenset(folders),
        )

    def _signing_key(self, account: _Account) -> dict[str, Any]:
        if account.key is not None:
            return {"account_key": account.key}
        with account.lock:
            now = self._monotonic()
            if account.user_key is None or now - account.user_key_at > _KEY_RENEWED_S:
                ends = datetime.now(UTC) + timedelta(seconds=_KEY_S)
                # It begins at once by Azure's clock: one that begins "now" by ours may begin in its future.
                begins = datetime.now(UTC) - timedelta(minutes=15)
                account.user_key = account.client.get_user_delegation_key(begins, ends)
                account.user_key_at = now
            return {"user_delegation_key": account.user_key}


def granted_code(broker: StorageBroker, build: BuildAhead) -> StorageGrant | None:
    """A grant to read the code of an environment that is built ahead; None where the node needs or gets none."""
    if build.bundle is None or not is_brokered(build.storage_url):
        return None
    name = bundle_file(build.bundle)
    request = StorageRequest(url=build.storage_url, action="read", names=(name,))
    return broker.answer({build.storage_url: Scope(reads=(name,))}, request).grant


def why_not(scopes: Scopes, request: StorageRequest) -> str | None:
    """Why a request is not answered, None when it is (pure)."""
    scope = scopes.get(request.url)
    if scope is None:
        return "the job has nothing in that storage"
    if request.action not in ("read", "write", "list"):
        return f"{request.action!r:.40} is no action"
    most = 1 if request.action == "list" else MOST_NAMES
    if not 0 < len(request.names) <= most:
        return f"a request is for 1 to {most} names"
    for name in request.names:
        try:
            if name or request.action != "list":
                parts_of(name)
        except OutsideFolder:
            return f"{name[:200]!r} is not a relative name inside the storage"
        if scope.covering(name, request.action) is None:
            return f"the job may not {request.action} {name[:200]!r}"
    return None


def _sign(account: _Account, key: dict[str, Any], permissions: str, name: str, *, is_folder: bool) -> str:
    from azure.storage.blob import generate_blob_sas

    is_secure = str(account.client.url).startswith("https:")
    token: str = generate_blob_sas(
        account.name,
        account.place.container,
        "/".join(filter(None, (account.place.root, name))),
        permission=permissions,
        # Without a beginning it is valid at once, however far the clocks differ.
        expiry=datetime.now(UTC) + timedelta(seconds=TOKEN_S),
        protocol="https" if is_secure else None,
        is_directory=is_folder or None,
        **key,
    )
    return token


def _listed(account: _Account, request: StorageRequest) -> Iterator[Entry]:
    """The file of that name, or what lies in the folder.  Raises StorageError when there is too much."""
    from azure.core.exceptions import ResourceNotFoundError

    root, (name,) = account.place.root, request.names
    container = account.client.get_container_client(account.place.container)
    full = "/".join(filter(None, (root, name)))
    if full:
        try:
            found = container.get_blob_client(full).get_blob_properties()
            yield _entry(found, root)
            if not _is_folder(found):
                return
        except ResourceNotFoundError:
            pass
    below = f"{full}/" if full else ""
    blobs = (
        container.list_blobs(name_starts_with=below, include=["metadata"])
        if request.is_deep
        else container.walk_blobs(name_starts_with=below, include=["metadata"], delimiter="/")
    )
    for count, blob in enumerate(blobs):
        if count >= MOST_LISTED:
            raise StorageError(f"{name[:200]!r} has more than {MOST_LISTED} files; pack them together")
        yield _entry(blob, root)


def _entry(blob: Any, root: str) -> Entry:
    name = str(blob.name).removeprefix(f"{root}/" if root else "").rstrip("/")
    # A prefix has neither size nor tag.
    is_folder = _is_folder(blob)
    return Entry(name, 0 if is_folder else int(blob.size or 0), str(blob.get("etag") or ""), is_folder)


def _is_folder(blob: Any) -> bool:
    return not hasattr(blob, "size") or (blob.get("metadata") or {}).get("hdi_isfolder") == "true"


def _endpoint(client: Any) -> str:
    return str(client.url).rstrip("/")


def _connected(account: AzureAccount) -> Any:
    """Azure's client.  Raises StorageError without it."""
    try:
        from azure.identity import ManagedIdentityCredential
        from azure.storage.blob import BlobServiceClient, ExponentialRetry
    except ImportError as error:
        raise StorageError(f"storages in Azure need its clients, install remora[azure]: {error}") from error
    # Who asks waits for half a minute.
    options: dict[str, Any] = {
        "retry_policy": ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=2),
        "connection_timeout": 5,
        "read_timeout": 15,
    }
    if account.connection_string:
        return BlobServiceClient.from_connection_string(account.connection_string, **options)
    if account.account_key:
        return BlobServiceClient(account.endpoint, credential=account.account_key, **options)
    credential = ManagedIdentityCredential(client_id=account.client_id or None)
    return BlobServiceClient(account.endpoint, credential=credential, **options)
