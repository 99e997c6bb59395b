"""A folder for the temporary files of an attempt's commands on one node; it is removed with the last of its workers.

All ranks of a node share it: libraries lock between them below the temporary folder (MosaicML Streaming, FileStore).
Sockets lie there, too, whose paths may have 107 bytes: where the node's `TMPDIR` has a long path, the folder lies there
all the same, and commands reach it by a short link.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from remora.private_files import is_private
from trainers.node_folders import shared_folder, sweep_folders, work_root

#: Bytes that the path of such a folder may have: Ray needs 68 below the one that it takes for itself.
_PATH_BYTES = 39
#: Hexadecimal digits of a folder's name.
_DIGITS = 8
#: Name of the folder for them in the node's own one.
_BELOW_WORK = "temporary"
#: Where short links lie, in a folder of this user.
_SHORT = Path("/tmp")  # noqa: S108 - private below it


def temporary_root() -> Path:
    """Folder of this user for the temporary folders of all attempts of the machine, where the node's TMPDIR says.

    Raises OSError when it cannot be made, and PermissionError when another user has made it.
    """
    return _made(Path(tempfile.gettempdir()) / _name())


def _name() -> str:
    return f"remora-tmp-{os.getuid()}"


def _made(root: Path) -> Path:
    root.mkdir(exist_ok=True, mode=0o700)
    if not is_private(root):
        raise PermissionError(f"{root} is no folder of this user alone; remove it")
    return root


def sweep_temporary() -> None:
    """Remove what killed processes left on the machine; makes nothing."""
    short = _SHORT / _name()
    roots = {short}
    with contextlib.suppress(OSError):
        roots.add(Path(tempfile.gettempdir()) / _name())
    with contextlib.suppress(OSError):
        for link in short.iterdir() if is_private(short) else ():
            if link.is_symlink():
                # Of a node whose TMPDIR is another one; or it leads nowhere, because the node's folder is gone.
                roots.add(link.readlink().parent)
                if not link.exists():
                    link.unlink(missing_ok=True)
    for root in roots:
        with contextlib.suppress(OSError):
            if root.name in (_name(), _BELOW_WORK) and is_private(root):
                sweep_folders(root, _unlink)


def sweep_temporary_of_node() -> None:
    """Remove what killed processes left in the node's own folder, where the usual place could not be used."""
    sweep_folders(work_root() / _BELOW_WORK, _unlink)


def _unlink(folder: Path) -> bool:
    """Remove the short link to a folder, if there is one."""
    link = _SHORT / _name() / folder.name
    with contextlib.suppress(OSError):
        if link.is_symlink() and link.readlink() == folder:
            link.unlink()
    return True


@contextlib.contextmanager
def temporary_folder(attempt_id: str, report: Callable[[str], None]) -> Iterator[Path]:
    """A folder that only this user can look into, for all workers of an attempt on this node, while one of them lives.

    Where its usual place cannot be used, it lies in the node's own folder; `report` is called with that, in one line.
    Raises OSError when that cannot be used either.
    """
    try:
        root = temporary_root()
    except OSError as error:
        root = _made(work_root() / _BELOW_WORK)
        report(f"temporary files lie in {root}: {error}")
    # Nodes that are simulated on one machine have work folders of their own.
    digest = hashlib.sha256(f"{work_root()}\0{attempt_id}".encode()).hexdigest()
    with shared_folder(digest[:_DIGITS], root, _unlink) as folder:
        folder.chmod(0o700)
        yield _shortened(folder, report)


def _shortened(folder: Path, report: Callable[[str], None]) -> Path:
    """The folder, or a link to it with a path that is short enough; the folder where none can be made."""
    if len(os.fsencode(folder)) <= _PATH_BYTES:
        return folder
    try:
        link = _made(_SHORT / _name()) / folder.name
        if link.is_symlink() and not link.exists():
            # Of a folder that was removed by others.
            link.unlink(missing_ok=True)
        with contextlib.suppress(FileExistsError):
            link.symlink_to(folder)
        if link.readlink() != folder:
            raise FileExistsError(f"{link} is not a link to it")
    except OSError as error:
        report(f"the path of TMPDIR, {folder}, may be too long for sockets: {error}")
        return folder
    return link
