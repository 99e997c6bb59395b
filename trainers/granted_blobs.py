"""A filesystem of blobs that its process reaches by grants of the service: each request has a token for its names.

Lists are the service's; contents go between this process and the account without passing through it.
"""

from __future__ import annotations

import contextlib
import io
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

from trainers.storage_grants import (
    MOST_NAMES,
    RENEWED_S,
    Action,
    Entry,
    StorageAnswer,
    StorageGrant,
    StorageRequest,
)

#: Bytes of one request of an upload or download, and how many are under way for one file.
_BLOCK_BYTES, _AT_ONCE = 16 * 2**20, 8
#: Blocks of one file: Azure takes no more.
_MOST_BLOCKS = 50_000
#: Further tries of one request.
_RETRIES = 3
#: Seconds until a connection is made, and until something more is read from it.
_CONNECTED_S, _READ_S = 10, 60
#: Tokens that are remembered.
_MOST_TOKENS = 10_000

Ask = Callable[[StorageRequest], StorageAnswer]


class NotGranted(Exception):
    """The service grants no access; the message says why."""


class Grants:
    """The grants of one storage, asked for when they are needed and again before they end.  Thread-safe."""

    def __init__(self, url: str, ask: Ask, clock: Callable[[], float] = time.monotonic) -> None:
        self._url, self._ask, self._clock = url, ask, clock
        self._lock = threading.Lock()
        #: By action and name, or folder: the grant and until when it is used.
        self._known: dict[tuple[Action, str], tuple[StorageGrant, float]] = {}

    def grant(self, name: str, action: Action) -> StorageGrant:
        """A grant with a token for this name.  Raises NotGranted, and what asking raises."""
        return self.grants([name], action)[name]

    def grants(self, names: Iterable[str], action: Action) -> Mapping[str, StorageGrant]:
        """Grants for names, asked for together."""
        found = {name: self._find(name, action) for name in names}
        missing = [name for name, one in found.items() if one is None]
        for begin in range(0, len(missing), MOST_NAMES):
            part = missing[begin : begin + MOST_NAMES]
            # The time before the request: the token's time began later.
            until = self._clock() + RENEWED_S
            answer = self._answer(StorageRequest(url=self._url, action=action, names=tuple(part)))
            if answer.grant is None:
                raise NotGranted("the service answered without a grant")
            self._keep(answer.grant, action, until)
            found |= dict.fromkeys(part, answer.grant)
        return {name: one for name, one in found.items() if one is not None}

    def entries(self, name: str, *, is_deep: bool) -> tuple[Entry, ...]:
        """What lies at a name: a file, or what is in a folder.  Raises NotGranted, and what asking raises."""
        request = StorageRequest(url=self._url, action="list", names=(name,), is_deep=is_deep)
        return self._answer(request).entries or ()

    def _answer(self, request: StorageRequest) -> StorageAnswer:
        answer = self._ask(request)
        if answer.refusal is not None:
            raise NotGranted(answer.refusal)
        return answer

    def _find(self, name: str, action: Action) -> StorageGrant | None:
        now = self._clock()
        with self._lock:
            for key in _keys(name):
                known = self._known.get((action, key))
                if known is not None and known[1] > now and known[0].token(name) is not None:
                    return known[0]
        return None

    def _keep(self, grant: StorageGrant, action: Action, until: float) -> None:
        with self._lock:
            if len(self._known) + len(grant.tokens) > _MOST_TOKENS:
                self._known.clear()
            self._known |= dict.fromkeys(((action, key) for key in grant.tokens), (grant, until))


def _keys(name: str) -> Iterator[str]:
    """A name and the folders above it."""
    while name:
        yield name
        name = name.rpartition("/")[0]


class GrantedBlobs(AbstractFileSystem):  # type: ignore[misc]
    """Blobs of one storage; paths begin with a slash, and the root is that of the storage."""

    protocol = "granted"
    #: Grants belong to one attempt: instances are not shared by what they were made with.
    cachable = False
    #: `cat_file` takes the tag of the file that is meant.
    checks_tags = True

    def __init__(self, grants: Grants, **_: Any) -> None:
        super().__init__()
        from azure.core.pipeline.transport import RequestsTransport

        self._grants = grants
        # One for all requests, so that connections are kept.
        self._transport = RequestsTransport()
        self._transport.open()

    # --- what lies where ----------------------------------------------------------------------------------------------

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Size, kind and tag of a file or folder.  Raises FileNotFoundError."""
        name = _name(path)
        found = self._grants.entries(name, is_deep=False)
        if not found:
            raise FileNotFoundError(name)
        own = next((one for one in found if one.name == name and not one.is_folder), None)
        return _info(own or Entry(name, 0, "", is_folder=True))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """What lies directly in a folder, or the file itself.  Raises FileNotFoundError."""
        found = self._grants.entries(_name(path), is_deep=False)
        if not found:
            raise FileNotFoundError(path)
        # A folder of an account that has folders is in its own list.
        below = [one for one in found if not (one.is_folder and one.name == _name(path))]
        return [_info(one) if detail else f"/{one.name}" for one in below]

    def find(self, path: str, withdirs: bool = False, detail: bool = False, **_: Any) -> Any:
        """All files in a folder and below, or the file itself."""
        found = self._grants.entries(_name(path), is_deep=True)
        named = {f"/{one.name}": _info(one) for one in sorted(found) if withdirs or not one.is_folder}
        return named if detail else list(named)

    def ukey(self, path: str) -> str:
        """Changes when the file is written to."""
        return str(self.info(path)["etag"])

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Folders are there with what lies in them."""

    # --- contents -----------------------------------------------------------------------------------------------------

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, etag: str = "", **_: Any
    ) -> bytes:
        """Content of a file, or bytes `start` to `end` of it, or of the file with this tag.

        Raises FileNotFoundError.
        """
        from azure.core import MatchConditions

        known = {"etag": etag, "match_condition": MatchConditions.IfNotModified} if etag else {}
        length = None if end is None else end - (start or 0)
        with _errors(path), io.BytesIO() as content:
            client = self._client(_name(path), "read")
            offset = start if start is not None or length is None else 0
            client.download_blob(offset, length, max_concurrency=_AT_ONCE, **known).readinto(content)
            return content.getvalue()

    def get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        """Copy a file to the local disk."""
        with _errors(rpath):
            stream = self._client(_name(rpath), "read").download_blob(max_concurrency=_AT_ONCE)
            with Path(lpath).open("wb") as file:
                stream.readinto(file)

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        """Write a file; with the mode `create` only where there is none.  Raises FileExistsError."""
        self._upload(path, value, may_replace=mode != "create")

    def put_file(self, lpath: str, rpath: str, **_: Any) -> None:
        """Copy a file from the local disk."""
        with Path(lpath).open("rb") as file:
            self._upload(rpath, file, may_replace=True)

    def mv(self, path1: str, path2: str, **_: Any) -> None:
        """Give a file another name."""
        self.pipe_file(path2, self.cat_file(path1))
        self.rm(path1)

    def rm(self, path: str, **_: Any) -> None:
        """Remove a file or a whole folder.  Raises FileNotFoundError."""
        found = self._grants.entries(_name(path), is_deep=True)
        if not found:
            raise FileNotFoundError(path)
        # Some accounts have folders, which have to be empty: the deepest first, after all files.
        folders = sorted((one.name for one in found if one.is_folder), key=len, reverse=True)
        files = [one.name for one in found if not one.is_folder]
        self._grants.grants((*files, *folders), "write")
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="delete") as pool:
            list(pool.map(self._delete, files))
        for folder in folders:
            self._delete(folder)

    def _delete(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), _errors(name):
            self._client(name, "write").delete_blob()

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode == "xb":
            return _Created(lambda content: self._upload(path, content, may_replace=False))
        if mode != "rb":
            raise NotImplementedError(f"files are not opened with the mode {mode!r}")
        return _BlobFile(self, path, mode, size=self.info(path)["size"])

    def _upload(self, path: str, content: bytes | IO[bytes], *, may_replace: bool) -> None:
        with _errors(path):
            file = io.BytesIO(content) if isinstance(content, bytes) else content
            size = file.seek(0, io.SEEK_END)
            file.seek(0)
            if size <= _BLOCK_BYTES:
                self._client(_name(path), "write").upload_blob(file.read(size), overwrite=may_replace)
            else:
                self._upload_blocks(_name(path), file, size, may_replace=may_replace)

    def _upload_blocks(self, name: str, file: IO[bytes], size: int, *, may_replace: bool) -> None:
        """Block by block, each with the grant of its time: a large file takes longer than a token is good for."""
        from azure.core import MatchConditions

        block_bytes = max(_BLOCK_BYTES, -(-size // _MOST_BLOCKS))
        # Equal names of blocks of another process that stores the same file now would mix both files.
        stem = uuid.uuid4().hex
        blocks: list[str] = []
        waiting: deque[Future[None]] = deque()
        with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="upload") as pool:
            for at in range(0, size, block_bytes):
                part = file.read(min(block_bytes, size - at))
                blocks.append(f"{stem}-{len(blocks):05d}")
                waiting.append(pool.submit(self._stage, name, blocks[-1], part))
                if len(waiting) >= _AT_ONCE:
                    waiting.popleft().result()
            for one in waiting:
                one.result()
        missing = {} if may_replace else {"match_condition": MatchConditions.IfMissing}
        self._client(name, "write").commit_block_list(blocks, **missing)

    def _stage(self, name: str, block: str, part: bytes) -> None:
        self._client(name, "write").stage_block(block, part)

    def _client(self, name: str, action: Action) -> Any:
        from azure.storage.blob import BlobClient, ExponentialRetry

        grant = self._grants.grant(name, action)
        return BlobClient(
            grant.endpoint,
            grant.container,
            "/".join(filter(None, (grant.root, name))),
            credential=grant.token(name),
            transport=self._transport,
            # The usual one waits for minutes; those that store files try again themselves.
            retry_policy=ExponentialRetry(initial_backoff=1, increment_base=2, retry_total=_RETRIES),
            connection_timeout=_CONNECTED_S,
            read_timeout=_READ_S,
            max_block_size=_BLOCK_BYTES,
            max_single_put_size=_BLOCK_BYTES,
            max_chunk_get_size=_BLOCK_BYTES,
            max_single_get_size=_BLOCK_BYTES,
        )


class _Created(io.BytesIO):
    """A small new file, which is there once it is closed."""

    def __init__(self, upload: Callable[[bytes], None]) -> None:
        super().__init__()
        self._upload = upload

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._upload(content)


class _BlobFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file that is read in parts."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        content: bytes = self.fs.cat_file(self.path, start, end)
        return content


def _name(path: str) -> str:
    return path.strip("/")


def _info(entry: Entry) -> dict[str, Any]:
    kind = "directory" if entry.is_folder else "file"
    return {"name": f"/{entry.name}", "size": entry.size_bytes, "type": kind, "etag": entry.tag}


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """Errors of Azure's client as those of files."""
    from azure.core.exceptions import ResourceExistsError, ResourceNotFoundError

    try:
        yield
    except ResourceNotFoundError:
        raise FileNotFoundError(path) from None
    except ResourceExistsError:
        raise FileExistsError(path) from None
