"""The keys by which cookies of sign-ins are signed, the same in all processes of the API.

They are derived from the keys of secrets, so that there is no further file to keep and to copy.
"""

from __future__ import annotations

import hmac

from service.secrets.encryption import Key
from service.secrets.key_file import KeyFile
from service.secrets.storing import newest_key
from service.store.database import Database

#: What no other use of the keys has.
_USE = b"remora sign-in on the page"


class SignInKeys:
    """Reads the key file at each call: another process may have replaced its keys."""

    def __init__(self, database: Database, key_file: KeyFile) -> None:
        self._database = database
        self._key_file = key_file

    def newest(self) -> bytes:
        """The key to sign with, made where there is none yet.  Raises KeysUnusable."""
        if found := self._key_file.read():
            return _derived(found[0])
        with self._key_file.locked():
            return _derived(newest_key(self._database, self._key_file))

    def all(self) -> tuple[bytes, ...]:
        """Those with which a cookie may be signed.  Raises KeysUnusable."""
        return tuple(map(_derived, self._key_file.read()))


def _derived(key: Key) -> bytes:
    return hmac.digest(key.content, _USE, "sha256")
