"""Whether a fork of the node's interpreter can take over the packages of a job's environment.

A started interpreter would find those of the environment first.  A fork has modules of the node already, so that it may
only add packages that none of these modules comes from.  What is in the environment was written by a job: here its
files are read, within bounds, and nothing of it runs.  Standard library only.

Sources: the documentation of `site` for .pth files, PEP 376 and PEP 427 for RECORD.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from itertools import islice

from trainers.processes.fork_server_rules import WarmState, hidden_module

#: Files of a folder of packages, bytes that are read of all of them together, lines of .pth files, and further folders
#: that are looked at; beyond, a command is started.
_MOST_ENTRIES, _MOST_BYTES, _MOST_LINES, _MOST_FOLDERS = 20_000, 64 << 20, 500, 32
#: What an interpreter imports by itself before anything else (`site`).
_AT_START = frozenset({"sitecustomize", "usercustomize"})
#: Packages that PyTorch imports with itself: https://docs.pytorch.org/tutorials/unstable/python_extension_autoload.html
_WITH_TORCH = "[torch.backends]"
#: The folder of an environment with a link to our own package (`trainers/public_package.py`).
_PUBLIC, _OURS = "remora-public", "remora"


class _Files:
    """Reads small files that a job may have written."""

    def __init__(self) -> None:
        self._left = _MOST_BYTES

    def text(self, path: str) -> str:
        """What is in a file.  Raises OSError, and ValueError for what is no file, or too much in all."""
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_size > self._left:
                raise ValueError(f"{os.path.basename(path)} is no file, or too big")
            read = file.read(self._left)
        self._left -= len(read)
        return read.decode(errors="replace")


def unfit_layer(layer: str, warm: WarmState) -> str | None:
    """Why a fork cannot take over the packages in the folder `layer` of a job's environment; None: it can."""
    files = _Files()
    try:
        further = _further_folders(layer, files)
        if not warm.packages <= further.keys():
            return "the environment does not inherit the packages of the node"
        for folder in (layer, *further):
            if folder not in warm.packages and (hidden := _hidden(folder, warm, files)) is not None:
                return f"{hidden} in the environment is another one than the module that is loaded"
        return _imported_with_torch(layer, files)
    except (OSError, ValueError) as error:
        return f"the environment cannot be read: {error}"


def _further_folders(layer: str, files: _Files) -> dict[str, None]:
    """Folders, without links, that the .pth files of a folder of packages add to the path, in order.

    Raises OSError, and ValueError for too many.
    """
    found: dict[str, None] = {}
    for line in _lines_of_pth(layer, files):
        path = os.path.join(layer, line.rstrip())
        if line.strip() and not line.startswith(("#", "import ", "import\t")) and os.path.isdir(path):
            found[os.path.realpath(path)] = None
        if len(found) >= _MOST_FOLDERS:
            raise ValueError("it adds too many folders")
    return found


def _lines_of_pth(layer: str, files: _Files) -> Iterator[str]:
    names = [name for name in sorted(_entries(layer)) if name.endswith(".pth") and not name.startswith(".")]
    left = _MOST_LINES - len(names)
    for name in names:
        lines = files.text(os.path.join(layer, name)).splitlines() if left >= 0 else []
        left -= len(lines)
        if left < 0:
            raise ValueError(f"its .pth files have more than {_MOST_LINES} lines")
        yield from lines


def _hidden(folder: str, warm: WarmState, files: _Files) -> str | None:
    """What a started interpreter would find in a folder in place of a module that is loaded, or looked for in vain."""
    loaded = (warm.loaded | warm.missed | _AT_START) - sys.stdlib_module_names
    entries = set(_entries(folder))
    if os.path.basename(folder) == _PUBLIC:
        entries.discard(_OURS)

    def find() -> str | None:
        return hidden_module(entries, loaded, lambda name: os.path.isdir(os.path.join(folder, name)))

    if find() is None:
        return None
    entries -= _same_as_the_nodes(folder, entries, warm, files)
    return find()


def _same_as_the_nodes(folder: str, entries: set[str], warm: WarmState, files: _Files) -> set[str]:
    """Entries of distributions that the node has too, with the same files."""
    same: set[str] = set()
    for name in entries:
        if not name.endswith(".dist-info"):
            continue
        for other in warm.packages:
            theirs = _record(os.path.join(other, name), files)
            if theirs and theirs == _record(os.path.join(folder, name), files):
                same |= {line.partition(",")[0].partition("/")[0] for line in theirs}
    return same


def _record(information: str, files: _Files) -> frozenset[str]:
    """The lines of a distribution's RECORD for what it makes importable: path, digest and size."""
    if not os.path.isdir(information):
        return frozenset()
    lines = files.text(os.path.join(information, "RECORD")).splitlines()
    return frozenset(
        line
        for line in lines
        if not line.startswith(("../", "/")) and ".dist-info/" not in line and "__pycache__/" not in line
    )


def _imported_with_torch(layer: str, files: _Files) -> str | None:
    for name in _entries(layer):
        points = os.path.join(layer, name, "entry_points.txt")
        if name.endswith(".dist-info") and os.path.exists(points) and _WITH_TORCH in files.text(points):
            return f"PyTorch imports {name.removesuffix('.dist-info')} with itself"
    return None


def _entries(folder: str) -> list[str]:
    with os.scandir(folder) as found:
        names = [one.name for one in islice(found, _MOST_ENTRIES + 1)]
    if len(names) > _MOST_ENTRIES:
        raise ValueError(f"it has more than {_MOST_ENTRIES} files in one folder")
    return names
