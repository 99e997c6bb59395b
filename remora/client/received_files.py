"""Downloaded files become a folder: each checked against its digest, all of them or none."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from remora.errors import DownloadError
from remora.views import OutputFile


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder that becomes `target` when the block ends well, and goes when it does not.

    Raises DownloadError when `target` has something in it, or this machine does not take it.
    """
    target = target.absolute()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise DownloadError(f"{target} is there already; name a folder that is empty or not there")
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise DownloadError(f"cannot write {target}: {error.strerror or error}") from error
    try:
        yield partial
        partial.chmod(0o755)
        partial.replace(target)
    except OSError as error:
        raise DownloadError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def place_for(folder: Path, file: OutputFile) -> Path:
    """Where a file goes, with the folders above it.  Raises DownloadError for a name that leads elsewhere."""
    name = PurePosixPath(file.name)
    if name.is_absolute() or ".." in name.parts or not name.parts:
        raise DownloadError(f"the file {file.name!r} is refused: it does not lie inside the folder")
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def check(path: Path, file: OutputFile) -> None:
    """Compare what arrived with what was announced.  Raises DownloadError."""
    with path.open("rb") as arrived:
        found = hashlib.file_digest(arrived, "sha256").hexdigest()
    if found != file.sha256:
        raise DownloadError(f"{file.name} arrived damaged or was replaced meanwhile; download it again")
