"""Makes `remora` importable for interpreters that do not have it, and shows them nothing else of the node."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import tempfile
from pathlib import Path

from remora.ray_labels import are_packages_brought


def public_package() -> Path:
    """The folder of the package `remora` that this process runs."""
    spec = importlib.util.find_spec("remora")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def public_folder(folder: Path) -> Path:
    """A folder below `folder` for an interpreter's path: there is a link to the package in it, and nothing else.

    Where the package was brought there is a copy: Ray removes its folder, and jobs do not see it.  Several processes
    may make it at the same time.  Raises OSError.
    """
    public = folder / "remora-public"
    public.mkdir(exist_ok=True)
    if are_packages_brought():
        _copy(public)
        return public
    with contextlib.suppress(FileExistsError):
        (public / "remora").symlink_to(public_package())
    return public


def _copy(public: Path) -> None:
    if (public / "remora").exists():
        return
    draft = Path(tempfile.mkdtemp(dir=public, prefix=".draft-"))
    draft.chmod(0o755)
    shutil.copytree(public_package(), draft / "remora", ignore=shutil.ignore_patterns("__pycache__"))
    # It is there whole or not at all; another process may have been first.
    with contextlib.suppress(OSError):
        (draft / "remora").rename(public / "remora")
    shutil.rmtree(draft, ignore_errors=True)
