"""The folders and files of a mounted input, from the list of its files (pure)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from trainers.confined_folders import OutsideFolder, parts_of
from trainers.input_source import InputFile


@dataclass
class Folder:
    """What is directly in a folder."""

    folders: dict[str, Folder] = field(default_factory=dict)
    files: dict[str, InputFile] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Of folders and files."""
        return [*self.folders, *self.files]


def tree_of(files: Iterable[InputFile]) -> Folder:
    """The root of a tree; where a name is that of a file and of a folder it is the folder's, as no disk has both.

    Names that no disk could have are left out.
    """
    root = Folder()
    for file in files:
        try:
            *above, last = parts_of(file.name)
        except OutsideFolder:
            continue
        folder = root
        for part in above:
            folder.files.pop(part, None)
            folder = folder.folders.setdefault(part, Folder())
        if last not in folder.folders:
            folder.files[last] = file
    return root


def found(root: Folder, path: str) -> Folder | InputFile | None:
    """What a path with slashes names, None for nothing."""
    here = root
    parts = [part for part in path.split("/") if part]
    for index, part in enumerate(parts):
        if part in here.folders:
            here = here.folders[part]
        elif part in here.files and index == len(parts) - 1:
            return here.files[part]
        else:
            return None
    return here
