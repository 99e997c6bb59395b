"""The token of a client: found in an option, the environment, what `remora login` stored, or the home of `remora up`.

A token is never part of an error, a log line or the text of an object, and it is sent to this machine or over TLS only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import platformdirs

from remora.errors import ConfigurationError

if TYPE_CHECKING:
    from remora.client.sign_ins import StoredSignIn

#: Where `remora login` stores tokens, by the addresses of services.
CREDENTIALS_FILE = "credentials.json"
#: In the home of a service that asks for authentication: the token of its first operator.
OPERATOR_TOKEN_FILE = "operator.token"  # noqa: S105 - the name of a file
#: Characters of a token; those of Entra ID have a few thousand.
MOST_TOKEN = 16_384

#: A token, or a function that gives the one that is good now.
TokenSource = str | Callable[[], str]


class BearerToken(httpx2.Auth):
    """Sends a token with each request; its text stands in no header that a client shows."""

    def __init__(self, source: TokenSource) -> None:
        self._source = source

    def __repr__(self) -> str:
        """Without the token."""
        return "<BearerToken>"

    def auth_flow(self, request: httpx2.Request) -> Generator[httpx2.Request, httpx2.Response, None]:
        """Add the header.  Raises ConfigurationError when the source gives no token."""
        token = self._source if isinstance(self._source, str) else self._source()
        request.headers["Authorization"] = f"Bearer {checked(token, 'the token')}"
        yield request


def checked(token: str, source: str) -> str:
    """The token without space around it.  Raises ConfigurationError, which does not show it."""
    text = token.strip()
    if not text or len(text) > MOST_TOKEN or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigurationError(f"{source} is no token: it has to be one word of ASCII characters")
    return text


def find_token(environ: Mapping[str, str], url: str, home: Path) -> TokenSource | None:
    """The token for the service at `url`: `REMORA_TOKEN`, a stored one, or that of the home whose service it is.

    Raises ConfigurationError for one that cannot be read.
    """
    if environ.get("REMORA_TOKEN"):
        return checked(environ["REMORA_TOKEN"], "REMORA_TOKEN")
    stored = stored_tokens().get(url)
    if isinstance(stored, str):
        return checked(stored, f"what {credentials_path()} says of {url}")
    if stored is not None:
        from remora.client.sign_ins import RenewedToken

        return RenewedToken(url)
    file = home / OPERATOR_TOKEN_FILE
    if _read(home / "api.url").strip() == url and (text := _read(file)):
        return checked(text, str(file))
    return None


def credentials_path() -> Path:
    """Where tokens are stored."""
    return Path(platformdirs.user_config_dir("remora")) / CREDENTIALS_FILE


def stored_tokens() -> dict[str, str | StoredSignIn]:
    """Tokens and sign-ins by the address of their service.  Raises ConfigurationError for a file that is not ours."""
    from remora.client.sign_ins import StoredSignIn

    text = _read(credentials_path())
    try:
        found = json.loads(text) if text else {}
        return {
            url: one if isinstance(one, str) else StoredSignIn.model_validate(one)
            for url, one in found.items()
        }
    except (ValueError, AttributeError):
        raise ConfigurationError(
            f"{credentials_path()} cannot be understood; remove it and run `remora login`"
        ) from None


@contextlib.contextmanager
def credentials_lock() -> Iterator[None]:
    """One process changes what is stored at a time; the file of the lock stays.  Raises OSError."""
    path = credentials_path()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def store_token(url: str, token: str | StoredSignIn | None) -> None:
    """Store the token or sign-in of a service in a file that only this user may read, or forget it.  Raises OSError."""
    with credentials_lock():
        store_locked(url, token)


def store_locked(url: str, token: str | StoredSignIn | None) -> None:
    """The same, by who has the lock.  Raises OSError."""
    found = stored_tokens()
    if token is None:
        if found.pop(url, None) is None:
            return
    else:
        found[url] = token
    path = credentials_path()
    written = {one: held if isinstance(held, str) else held.model_dump() for one, held in found.items()}
    write_private(path, json.dumps(written, indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """Replace a file by one that only this user may read, as a whole; it is on disk afterwards.  Raises OSError."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        draft.unlink()
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _read(file: Path) -> str:
    """The text of a small file; empty when there is none.  Raises ConfigurationError."""
    try:
        return file.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {file}: {type(error).__name__}") from None
