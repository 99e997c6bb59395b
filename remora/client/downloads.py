"""Downloaded files and archives become a folder on this machine: complete and checked, or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tarfile
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


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A file that becomes `target` when the block ends well, and goes when it does not.

    Raises DownloadError when `target` is there already, or this machine does not take it.
    """
    if not target.name:
        raise DownloadError(f"{target} is no name of a file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if os.path.lexists(target):
            raise DownloadError(f"{target} is there already; name a file that is not there")
        folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    except OSError as error:
        raise DownloadError(f"cannot write {target}: {error.strerror or error}") from error
    try:
        yield folder / target.name
        (folder / target.name).replace(target)
    except OSError as error:
        raise DownloadError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def target_path(folder: Path, file: OutputFile) -> Path:
    """Path of a file below `folder`, whose parents are made.  Raises DownloadError for a name that leads elsewhere."""
    name = PurePosixPath(file.name)
    if name.is_absolute() or ".." in name.parts or not name.parts:
        raise DownloadError(f"the file {file.name!r} is refused: it does not lie inside the folder")
    path = folder / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(f"cannot write {path}: {error.strerror or error}") from error
    return path


def check_digest(path: Path, file: OutputFile) -> None:
    """Compare a downloaded file with the digest that the service gave.  Raises DownloadError."""
    with path.open("rb") as content:
        found = hashlib.file_digest(content, "sha256").hexdigest()
    if found != file.sha256:
        raise DownloadError(f"{file.name} arrived damaged or was replaced meanwhile; download it again")


def extract(archive: Path, target: Path) -> None:
    """Unpack a tar archive into the folder `target`, which must not exist or be empty.

    Raises DownloadError for a damaged archive, for names and links that lead out of the folder, and for a disk that
    does not take it.
    """
    try:
        target = target.absolute()
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise DownloadError(f"{target} is there already; name a folder that is empty or not there")
        partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        try:
            with tarfile.open(archive, "r:") as tar:
                _write_files(tar, partial)
            partial.chmod(0o755)
            partial.replace(target)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
    except (tarfile.TarError, EOFError) as error:
        raise DownloadError(f"the downloaded checkpoint is damaged: {error}") from error
    except OSError as error:
        raise DownloadError(f"cannot write {target}: {error.strerror or error}") from error


def _write_files(tar: tarfile.TarFile, folder: Path) -> None:
    """Write the archive's files; a checkpoint has nothing else, so anything else is refused.

    By hand, because the first releases of Python 3.11 (Debian 12 has one) lack tarfile's extraction filters.
    """
    for member in tar:
        name = PurePosixPath(member.name)
        if name.is_absolute() or ".." in name.parts or not (member.isreg() or member.isdir()):
            raise DownloadError(f"the downloaded checkpoint is refused: {member.name!r} is no file inside it")
        path = folder / name
        if member.isdir():
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        content = tar.extractfile(member)
        if content is None:
            raise DownloadError(f"the downloaded checkpoint is damaged: {member.name!r} has no content")
        with content, path.open("xb") as file:
            shutil.copyfileobj(content, file)
