"""Folders of a node that several processes share under a lock, such as the unpacked code bundle of a worker group.

The code is unpacked again for every worker group, so that ranks on different nodes always start from the same files.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from remora.code.bundle import unpack
from remora.private_files import is_private, open_lock
from trainers.confined_folders import remove_tree
from trainers.storage import Storage

#: Seconds until a lock that another one holds is tried again.
_LOOK_S = 0.1
#: Part of the names of folders that outlive their users for a while, and the file in them that says since when.
KEPT_NAME, _MARK = "-kept-", "kept"
#: Seconds that such a folder stays after its mark was written; who no longer needs it removes it earlier.
KEPT_S = 3600.0
#: Removes what belongs to a folder and lies elsewhere; False when some of it is still used.  Raises OSError.
Clear = Callable[[Path], bool]


def work_root() -> Path:
    """Folder of this node for everything that jobs need while they run; owner only.

    `REMORA_WORK_DIR` names it; what made the node sets that, and removes the folder with the node.
    """
    root = os.environ.get("REMORA_WORK_DIR")
    if root:
        folder = Path(root)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return folder
    folder = Path(tempfile.gettempdir()) / f"remora-work-{os.getuid()}"
    folder.mkdir(exist_ok=True, mode=0o700)
    if not is_private(folder):
        raise PermissionError(f"{folder} is no folder of this user alone; remove it, or set REMORA_WORK_DIR")
    return folder


@contextlib.contextmanager
def shared_folder(name: str, root: Path | None = None, clear: Clear | None = None) -> Iterator[Path]:
    """A folder below a root (the work root), shared by all processes that use it; the last one removes it.

    `clear` is called before, and may postpone that to a later `sweep_folders`.
    """
    root = root or work_root()
    folder = root / name
    with _locked(root / f"{name}.lock") as lock:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            yield folder
        finally:
            _remove_unused(folder, lock, clear)


def sweep_folders(root: Path | None = None, clear: Clear | None = None) -> list[str]:
    """Remove what killed supervisors left below a root (the work root); returns the names.

    Folders in use are not touched, nor those of which `clear` says that they have to stay.
    """
    removed: list[str] = []
    for path in sorted((root or work_root()).glob("*.lock")):
        # A lock that is no file of ours is ignored, and so is the folder that it names.
        with contextlib.suppress(OSError), open_lock(path, make=False) as lock:
            if _remove_unused(path.with_suffix(""), lock, clear):
                removed.append(path.stem)
    return removed


def make_once(
    lock: IO[str],
    is_there: Callable[[], bool],
    make: Callable[[], None],
    check: Callable[[], None] = lambda: None,
) -> None:
    """Hold the lock shared when it is there; who finds that it is not makes it, with the lock alone.

    Nothing waits inside the kernel: who waited there for the lock alone would wait until all that share it have ended.
    `check` is called before each try, and may raise.
    """
    while True:
        check()
        if _try_lock(lock, fcntl.LOCK_SH):
            if is_there():
                return
            # A lock that is shared is not made another one's: two that tried would refuse each other for ever.
            fcntl.flock(lock, fcntl.LOCK_UN)
            if _try_lock(lock, fcntl.LOCK_EX) and not is_there():
                make()
                continue
        time.sleep(random.uniform(0.01, _LOOK_S))  # noqa: S311 - so that two do not try at the same time


def _try_lock(lock: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[str]]:
    """Hold a shared lock on the file that has this name now, and not on one that was just removed."""
    while True:
        with open_lock(path) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            if _is_same(path, lock):
                yield lock
                return


def is_in_use(path: Path) -> bool:
    """True when a living process shares the folder of a lock file; one that is being removed is in use no more."""
    with contextlib.suppress(OSError), open_lock(path, make=False) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Succeeds beside those who share it, and not beside one who removes it.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return True
    return False


def _is_same(path: Path, opened: IO[str]) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(opened.fileno()))
    except FileNotFoundError:
        return False


def _remove_unused(folder: Path, lock: IO[str], clear: Clear | None) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    if not _is_same(folder.with_name(f"{folder.name}.lock"), lock):
        return False
    if _is_kept(folder):
        return False
    try:
        if clear is not None and not clear(folder):
            return False
        remove_tree(folder)
    except OSError:
        # Something may still write there for a moment: without its lock no sweep would find it again.
        return False
    folder.with_name(f"{folder.name}.lock").unlink(missing_ok=True)
    return True


def mark_kept(folder: Path) -> None:
    """Keep a folder with `KEPT_NAME` in its name without users, for `KEPT_S` from now.  Raises OSError.

    It goes earlier when the machine starts again, or when this node's work root is gone.
    """
    draft = folder / f"{_MARK}.{uuid.uuid4().hex}.tmp"
    # The machine's clock, which cannot be set (decision 0077).
    draft.write_text(f"{time.monotonic()}\n{work_root()}\n")
    draft.replace(folder / _MARK)


def unmark_kept(folder: Path) -> None:
    """Let a folder go with its last user.  Raises OSError."""
    (folder / _MARK).unlink(missing_ok=True)


def _is_kept(folder: Path) -> bool:
    if KEPT_NAME not in folder.name:
        return False
    try:
        since, root = (folder / _MARK).read_text().splitlines()
        return 0.0 <= time.monotonic() - float(since) < KEPT_S and Path(root).is_dir()
    except (OSError, ValueError):
        return False


def fill_once(folder: Path, name: str, fill: Callable[[Path], object], check: Callable[[], None]) -> Path:
    """The folder `name` below a folder of several processes, which one of them fills; the others wait for that.

    A folder that was filled in part has another name, and is removed.  `check` is called while it is waited for, and
    may raise.  Raises what `fill` raises.
    """
    filled = folder / name

    def make() -> None:
        fresh = Path(tempfile.mkdtemp(dir=folder, prefix=f"{name}-"))
        try:
            fill(fresh)
            fresh.chmod(0o755)
            fresh.rename(filled)
        except BaseException:
            with contextlib.suppress(OSError):
                remove_tree(fresh)
            raise

    with open_lock(folder / f"{name}.lock") as lock:
        make_once(lock, filled.exists, make, check)
    return filled


def unpack_once(storage: Storage, bundle: str | None, folder: Path) -> Path:
    """Unpack the bundle `sha256:...` into `folder/code` unless another rank did; returns that folder.

    Raises FileNotFoundError when the storage has no such bundle, remora.errors.BundleError when it is unusable.
    """
    code = folder / "code"
    with open_lock(folder / "code.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if code.exists():
            return code
        fresh = Path(tempfile.mkdtemp(dir=folder, prefix="unpacking-"))
        if bundle is not None:
            packed = fresh.with_suffix(".zip")
            storage.read_file(f"bundles/{bundle.removeprefix('sha256:')}.zip", packed)
            unpack(packed, fresh)
            packed.unlink()
        fresh.rename(code)
    return code
