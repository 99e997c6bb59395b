"""One command at a time changes an installation: a lock that the kernel frees when the process of a command ends."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from service.installation.layout import InstallationProblem

#: Below the prefix; deploy/azure/machine/install.py holds it while it installs a release.
LOCK = "commands.lock"


@contextlib.contextmanager
def alone(prefix: Path) -> Iterator[None]:
    """Keep other commands from changing the installation meanwhile; its folder is made where there is none.

    Raises InstallationProblem while another one runs.
    """
    prefix.mkdir(parents=True, exist_ok=True)
    lock = os.open(prefix / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstallationProblem(
                f"another command of remora-server runs for {prefix}, and nothing was changed: run this again when it"
                " has ended"
            ) from None
        yield
    finally:
        os.close(lock)
