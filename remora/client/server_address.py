"""Which service the client talks to, and where an embedded one lives.  No configuration is needed."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs

from remora.errors import ConfigurationError

DEFAULT_SERVER = "http://127.0.0.1:7265"
#: Name of the file in which a running `remora up` writes its address.
ADDRESS_FILE = "api.url"


@dataclass(frozen=True)
class Server:
    """The address of a service and where it was found."""

    url: str
    #: For people, e.g. `REMORA_SERVER`.
    source: str

    @property
    def is_local(self) -> bool:
        """True when it is on this machine, so that no proxy may come between."""
        host = urlsplit(self.url).hostname or ""
        try:
            return ipaddress.ip_address(host).is_loopback
        except ValueError:
            return host == "localhost"


def home_folder(environ: Mapping[str, str], option: Path | None = None) -> Path:
    """Folder of the embedded service: the option, `REMORA_HOME`, or the user's data folder."""
    if option is not None:
        return option
    return Path(environ.get("REMORA_HOME") or platformdirs.user_data_dir("remora"))


def find_server(environ: Mapping[str, str], option: str | None = None) -> Server:
    """The service to talk to: the option, `REMORA_SERVER`, a running `remora up`, or the default address.

    Raises ConfigurationError when what is written there is no address.
    """
    if option:
        return Server(_checked(option, "the server option"), "the server option")
    if environ.get("REMORA_SERVER"):
        return Server(_checked(environ["REMORA_SERVER"], "REMORA_SERVER"), "REMORA_SERVER")
    file = home_folder(environ) / ADDRESS_FILE
    try:
        written = file.read_text(encoding="utf-8").strip()
    except (FileNotFoundError, NotADirectoryError):
        written = ""
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {file}: {error}") from error
    if written:
        return Server(_checked(written, str(file)), str(file))
    return Server(DEFAULT_SERVER, "the default")


def _checked(url: str, source: str) -> str:
    try:
        parts = urlsplit(url.strip())
        valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        valid = (
            valid
            and not (parts.query or parts.fragment)
            and url.strip().isprintable()
            and " " not in url.strip()
        )
    except ValueError:
        valid = False
    if not valid:
        raise ConfigurationError(
            f"{url[:200]!r} ({source}) is no address of a service; write it like {DEFAULT_SERVER}"
        )
    return url.strip().rstrip("/")
