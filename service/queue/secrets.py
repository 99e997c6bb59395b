"""What is known of a project's secrets without their values, and what a new one may be (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from remora.spec.secret_uses import SECRET_NAME_FORM, is_secret_name

#: Bytes of a value as UTF-8, and secrets of one project.
MAX_VALUE_BYTES, MAX_SECRETS_OF_PROJECT = 64 * 1024, 100
#: Bytes that one line of a value has at least: shorter ones are not looked for in logs.
SHORTEST_LINE = 8
#: Of a secret in Azure Key Vault: its vault, its name, its version.
_KEY_VAULT = re.compile(
    r"https://[a-zA-Z0-9-]{3,24}\.vault\.(?:azure\.net|azure\.cn|usgovcloudapi\.net)"
    r"/secrets/[0-9a-zA-Z-]{1,127}(?:/[0-9a-f]{32})?"
)
_EMULATED = re.compile(r"http://127\.0\.0\.1:\d{1,5}/secrets/[0-9a-zA-Z-]{1,127}")
KEY_VAULT_FORM = "https://NAME.vault.azure.net/secrets/SECRET, with a version behind it or without"


class SecretSource(StrEnum):
    """Where a secret's value comes from."""

    VALUE = "value"
    KEY_VAULT = "key_vault"


@dataclass(frozen=True)
class SecretPlace:
    """What a stored content belongs to."""

    project: str
    name: str
    version: int
    source: SecretSource


@dataclass(frozen=True, kw_only=True)
class SecretRow:
    """One secret as it is stored."""

    project: str
    name: str
    #: 1, 2, ...: grows with each value.
    version: int
    source: SecretSource
    key_id: str
    ciphertext: bytes
    created_at: float
    updated_at: float
    #: As the client sent it.
    updated_by: str = ""

    @property
    def place(self) -> SecretPlace:
        """What its content is bound to."""
        return SecretPlace(self.project, self.name, self.version, self.source)


def refuses_name(name: str) -> str | None:
    """Why no secret can have this name; None when one can."""
    return None if is_secret_name(name) else f"{name[:80]!a} is no name of a secret; use {SECRET_NAME_FORM}"


def refuses_value(value: str) -> str | None:
    """Why this cannot be a secret's value, in words without it; None when it can."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "half a character (a lone surrogate) has no bytes; encode the value, e.g. with base64"
    if size > MAX_VALUE_BYTES:
        return f"the value has {size} bytes, and {MAX_VALUE_BYTES} are possible; put the data into a file of an input"
    if "\0" in value:
        return "a null character cannot be passed to a process; encode the value, e.g. with base64"
    if max((len(line.encode()) for line in re.split(r"[\r\n]", value)), default=0) < SHORTEST_LINE:
        return (
            f"the value has no line of {SHORTEST_LINE} bytes, and what is shorter cannot be removed from logs; use"
            " environment.variables for what is no secret"
        )
    return None


def refuses_key_vault(url: str, *, is_emulated: bool) -> str | None:
    """Why no secret of Azure Key Vault is meant; None when one is.  An emulated cloud has its vault on this machine."""
    if _KEY_VAULT.fullmatch(url) or (is_emulated and _EMULATED.fullmatch(url)):
        return None
    return f"{url[:120]!a} is no secret of a key vault; write {KEY_VAULT_FORM}"
