"""Which service uses an existing cluster: a random id of its home, as paths and host names repeat and change."""

from __future__ import annotations

import re
import secrets
import socket
from pathlib import Path

from cluster.local.certificates import write_private

#: The file in the home with its id.
_FILE = "service.id"
_FORM = re.compile(r"[0-9a-f]{32}")


def owner_of(home: Path) -> str:
    """The id of this home, made when it is first asked for, and where the home is, for people.  Raises OSError."""
    path = home / _FILE
    try:
        known = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, UnicodeDecodeError):
        known = ""
    if not _FORM.fullmatch(known):
        known = secrets.token_hex(16)
        write_private(path, known.encode())
    return f"{known} {home} on {socket.gethostname()}"
