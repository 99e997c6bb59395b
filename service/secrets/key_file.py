"""The file with the keys of all secrets: made when the first secret is stored, readable by the service's user alone.

The newest key is the first one.  Others are there while a rotation is under way: `service.secrets.rotation`.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from service.secrets.encryption import KEY_BYTES, Key

#: Bytes of the file.
_MOST_BYTES = 1 << 20


class KeysUnusable(Exception):
    """The keys cannot be read or written; the message is one sentence that says what to do."""


class KeyFile:
    """The keys at a path."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> tuple[Key, ...]:
        """All keys, newest first; none where there is no file.  Raises KeysUnusable."""
        try:
            with self.path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(_MOST_BYTES)
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise KeysUnusable(f"the key file {self.path} cannot be read: {error.strerror}") from None
        if mode & 0o077:
            raise KeysUnusable(f"other users may read the key file {self.path}; run chmod 600 on it")
        try:
            keys = tuple(
                Key(str(one["id"]), base64.b64decode(one["key"], validate=True))
                for one in json.loads(content)["keys"]
            )
        except (ValueError, KeyError, TypeError):
            keys = ()
        if not keys or any(len(key.content) != KEY_BYTES for key in keys):
            raise KeysUnusable(f"the key file {self.path} is damaged; restore it from its copy")
        return keys

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing secrets or keys meanwhile.  Raises KeysUnusable."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = os.open(f"{self.path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def add(self) -> tuple[Key, ...]:
        """Put a new key before those that are there and return all; for who has the lock.  Raises KeysUnusable."""
        keys = (Key(f"key_{os.urandom(8).hex()}", os.urandom(KEY_BYTES)), *self.read())
        self.write(keys)
        return keys

    def write(self, keys: Sequence[Key]) -> None:
        """Have these keys and no others, at once; for who has the lock.  Raises KeysUnusable."""
        listed = [{"id": key.id, "key": base64.b64encode(key.content).decode()} for key in keys]
        draft = self.path.with_name(f"{self.path.name}.draft")
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(draft, flags, 0o600), "w") as file:
                os.fchmod(file.fileno(), 0o600)
                json.dump({"keys": listed}, file)
                file.flush()
                os.fsync(file.fileno())
            draft.replace(self.path)
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> KeysUnusable:
        return KeysUnusable(f"the key file {self.path} cannot be written: {error.strerror}")
