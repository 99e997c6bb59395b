"""Makes `remora` importable for interpreters that do not have it, and shows them nothing else of the node."""

from __future__ import annotations

import contextlib
import importlib.util
from pathlib import Path


def public_package() -> Path:
    """The folder of the package `remora` that this process runs."""
    spec = importlib.util.find_spec("remora")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def public_folder(folder: Path) -> Path:
    """A folder below `folder` for an interpreter's path: there is a link to the package in it, and nothing else.

    Several processes may make it at the same time.  Raises OSError.
    """
    public = folder / "remora-public"
    public.mkdir(exist_ok=True)
    with contextlib.suppress(FileExistsError):
        (public / "remora").symlink_to(public_package())
    return public
