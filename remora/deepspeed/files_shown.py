"""Files of a checkpoint that is handed over, shown in the folder in which the script saves."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path


def show(folder: Path, target: Path) -> None:
    """Have the script find what it saved in its own folder: large files are not copied where that can be."""
    for source in folder.rglob("*"):
        if not source.is_file():
            continue
        shown = target / source.relative_to(folder)
        shown.parent.mkdir(parents=True, exist_ok=True)
        draft = shown.with_name(f"{shown.name}.{os.getpid()}.tmp")
        try:
            if source.suffix != ".pt":
                shutil.copy2(source, draft)
            else:
                try:
                    os.link(source, draft)
                except OSError:
                    shutil.copy2(source, draft)
            # What the script saved under this name before may still be on its way to the storage.
            draft.replace(shown)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()
