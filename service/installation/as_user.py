"""Runs a module of this release as the user whose files the home has: root follows nothing that this user put there.

The user's processes can make links in the home, and write its settings, which name files, too.
"""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import IO, Any

from service.installation.layout import InstallationProblem

_SHOWN = 600


def call(
    user: str,
    module: str,
    *words: str,
    given: str = "",
    read: IO[bytes] | None = None,
    written: IO[bytes] | None = None,
    timeout_s: float | None = None,
) -> str:
    """What a module prints; an empty user is the one of this process.

    `given` is its input, unless it is the open file `read`; what it prints goes to the open file `written`, if any.
    Raises InstallationProblem with what it said last.
    """
    streams: dict[str, Any] = {"stdin": read} if read is not None else {"input": given.encode()}
    try:
        home = {"HOME": pwd.getpwnam(user).pw_dir} if user else {}
        done = subprocess.run(
            [sys.executable, "-P", "-m", module, *words],
            env={**os.environ, **home, "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
            user=user or None,
            group=user or None,
            extra_groups=[] if user else None,
            cwd="/",
            stdout=written if written is not None else subprocess.PIPE,
            stderr=subprocess.PIPE,
            timeout=timeout_s,
            check=False,
            **streams,
        )
    except KeyError:
        raise InstallationProblem(f"there is no user or no group {user} on this machine") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise InstallationProblem(str(error)) from error
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        raise InstallationProblem(lines[-1][:_SHOWN])
    return "" if done.stdout is None else done.stdout.decode(errors="replace").strip()
