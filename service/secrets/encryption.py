"""Encrypts what is stored of a secret, and binds it to its place: no row can stand for another one (pure).

AES-256 in GCM, with the project, the name, the version and the source of a secret as associated data: a row that is
copied to another name, or put back after a newer version, cannot be opened.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from service.queue.secrets import SecretPlace

#: Bytes of a key, and of the random number before each ciphertext.
KEY_BYTES, _NONCE_BYTES = 32, 12


class CannotOpen(Exception):
    """What is stored cannot be decrypted; the message is one sentence."""


class KeyUnknown(CannotOpen):
    """The key is not among those that are there."""


@dataclass(frozen=True)
class Key:
    """A key with its name in the rows."""

    id: str
    content: bytes = field(repr=False)


@dataclass(frozen=True)
class Sealed:
    """An encrypted content, and the name of its key."""

    key_id: str
    ciphertext: bytes = field(repr=False)


def seal(key: Key, place: SecretPlace, content: bytes) -> Sealed:
    """Encrypt the content of a secret for its place."""
    nonce = os.urandom(_NONCE_BYTES)
    return Sealed(key.id, nonce + AESGCM(key.content).encrypt(nonce, content, _associated(place)))


def unseal(keys: Sequence[Key], place: SecretPlace, sealed: Sealed) -> bytes:
    """The content that was encrypted for this place.  Raises CannotOpen, KeyUnknown."""
    key = next((one for one in keys if one.id == sealed.key_id), None)
    what = f"the secret {place.name} of the project {place.project}"
    if key is None:
        raise KeyUnknown(
            f"{what} is encrypted with the key {sealed.key_id}, which the key file does not have"
        )
    nonce, rest = sealed.ciphertext[:_NONCE_BYTES], sealed.ciphertext[_NONCE_BYTES:]
    try:
        return AESGCM(key.content).decrypt(nonce, rest, _associated(place))
    except (InvalidTag, ValueError):
        raise CannotOpen(
            f"{what} cannot be decrypted: its row was changed, or moved from another place; set it again"
        ) from None


def _associated(place: SecretPlace) -> bytes:
    parts = ["remora secret", place.project, place.name, place.version, place.source]
    return json.dumps(parts).encode()
