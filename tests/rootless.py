"""Runs programs as a user without any rights, where the tests themselves run as root.

The interpreter may lie in the home of root, which is closed to others: in a mount namespace of the program's own that
home is empty but for the interpreter.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.job_uids import own_uids

#: Flags of `unshare` for a namespace of processes, which ends with its first one.
PROCESSES = ("--pid", "--fork", "--mount-proc", "--kill-child")
_BASE = Path(sys.base_prefix).resolve()
_OPEN = """
if [ "$NET" ]; then ip link set lo up; fi
if [ "$CLOSED" ]; then
    mkdir -p "$FOLDER/base" && mount --bind "$BASE" "$FOLDER/base" && mount -t tmpfs -o mode=755 none "$CLOSED"
    mkdir -p "$BASE" && mount --bind "$FOLDER/base" "$BASE"
fi
unset FOLDER BASE CLOSED NET
if [ "$OTHER" = 0 ]; then exec "$0" "$@"; fi
exec setpriv --reuid "$OTHER" --regid "$OTHER" --clear-groups --no-new-privs "$0" "$@"
"""


@contextlib.contextmanager
def home_of_another() -> Iterator[Path]:
    """The home of a user of this process of the tests, who may look into it, while the context is open."""
    uid = own_uids(1).first
    made = Path(tempfile.mkdtemp(prefix="remora-rootless-", dir="/tmp"))
    try:
        os.chown(made, uid, uid)
        yield made
    finally:
        shutil.rmtree(made)
        # A node keeps its own empty folders there.
        for left in (*Path("/tmp").iterdir(), *Path("/dev/shm").iterdir()):
            if left.lstat().st_uid == uid:
                shutil.rmtree(left) if left.is_dir() and not left.is_symlink() else left.unlink()


def as_other_user(
    home: Path,
    *words: str,
    own_network: bool = False,
    own_processes: bool = False,
    is_root: bool = False,
    timeout_s: float = 60.0,
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run this interpreter with these words as the user whose home that is, or as root with his view of the files.

    If asked it has a network or a namespace of processes of its own.
    """
    kinds = ["-mn" if own_network else "-m", *(PROCESSES if own_processes else ())]
    closed = next((str(one) for one in reversed(_BASE.parents) if not one.stat().st_mode & 0o001), "")
    inside = {"FOLDER": str(home), "BASE": str(_BASE), "CLOSED": closed, "NET": "yes" if own_network else ""}
    kept: Mapping[str, str] = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    own = {
        "HOME": str(home),
        "USER": "rootless",
        "LOGNAME": "rootless",
        "OTHER": "0" if is_root else str(home.stat().st_uid),
    }
    return subprocess.run(
        ["unshare", *kinds, "sh", "-ec", _OPEN, sys.executable, *words],
        env={**kept, **inside, **own, **variables},
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
