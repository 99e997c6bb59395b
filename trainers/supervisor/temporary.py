"""A folder for the temporary files of each worker's command; it goes with the worker.

Scripts and libraries put sockets below `TMPDIR`, whose paths may have 107 bytes, so these folders lie directly below
the system's temporary folder, not in the node's own one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainers.supervisor.code import is_private, shared_folder, sweep_folders

#: Bytes that the path of such a folder may have: Ray needs 68 below the one that it takes for itself.
_PATH_BYTES = 39
#: Hexadecimal digits of a folder's name.
_DIGITS = 8


def temporary_root() -> Path:
    """Folder of this user for the temporary folders of all workers of the machine.

    Raises PermissionError when somebody else has made it.
    """
    root = _root()
    root.mkdir(exist_ok=True, mode=0o700)
    if not is_private(root):
        raise PermissionError(f"{root} is no folder of this user alone; remove it")
    return root


def _root() -> Path:
    name = f"remora-tmp-{os.getuid()}"
    system = tempfile.gettempdir()
    longest = len(os.fsencode(system)) + len(f"/{name}/") + _DIGITS
    return Path(system if longest <= _PATH_BYTES else "/tmp") / name  # noqa: S108 - private below it


def sweep_temporary() -> None:
    """Remove what killed processes left there; makes nothing."""
    root = _root()
    if root.exists() and is_private(root):
        sweep_folders(root)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that only this user can look into, while this process lives.  Raises PermissionError."""
    with shared_folder(secrets.token_hex(_DIGITS // 2), temporary_root()) as folder:
        folder.chmod(0o700)
        yield folder
