"""Which files of a folder are the user's code: `.gitignore` and `.remoraignore` decide, as git would.

Links are followed when they stay inside the folder (the bundle then holds copies) and refused when they leave it,
lead nowhere, or lead in a circle.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from remora.errors import BundleError

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

#: Never code; a `!pattern` in an ignore file brings one back.
DEFAULT_IGNORES = (
    ".git",
    ".hg",
    ".svn",
    ".venv",
    "venv",
    "__pycache__",
    "*.pyc",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
    ".tox",
    ".nox",
    "node_modules",
    ".DS_Store",
)
IGNORE_FILES = (".gitignore", ".remoraignore")


@dataclass(frozen=True)
class SourceFile:
    """One file to pack."""

    #: Relative POSIX name in the bundle.
    name: str
    #: The file itself, links resolved.
    path: Path
    size_bytes: int
    is_executable: bool


@dataclass(frozen=True)
class _Rules:
    """The ignore patterns of one folder."""

    prefix: str
    patterns: GitIgnoreSpec


def source_files(folder: Path) -> Iterator[SourceFile]:
    """Every file below `folder` that no pattern ignores, in any order.

    Raises BundleError for a folder that is not there, a link that leaves it, and for anything that is neither a file
    nor a folder.
    """
    try:
        root = folder.resolve(strict=True)
    except (OSError, RuntimeError):
        raise BundleError(f"the code folder {folder} does not exist") from None
    if not root.is_dir():
        raise BundleError(f"{folder} is not a folder; `code` names the folder that holds the script")
    yield from _walk(root, root, "", _default_rules(), (root,))


def _default_rules() -> tuple[_Rules, ...]:
    from pathspec import GitIgnoreSpec

    return (_Rules("", GitIgnoreSpec.from_lines(DEFAULT_IGNORES)),)


def _walk(
    root: Path, folder: Path, prefix: str, rules: tuple[_Rules, ...], above: tuple[Path, ...]
) -> Iterator[SourceFile]:
    rules = (*rules, *_rules_of(folder, prefix))
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        raise BundleError(f"cannot read the folder {folder}: {error.strerror}") from error
    for entry in entries:
        name = prefix + entry.name
        # git applies patterns that end in "/" to real folders only, and a link is no folder to git
        if _is_ignored(name, entry.is_dir(follow_symlinks=False), rules):
            continue
        path = _inside(root, Path(entry.path), name) if entry.is_symlink() else Path(entry.path)
        status = _status(path, name)
        if stat.S_ISDIR(status.st_mode):
            if path in above:
                raise BundleError(f"the link {name} leads in a circle; add it to .remoraignore")
            yield from _walk(root, path, f"{name}/", rules, (*above, path))
        elif stat.S_ISREG(status.st_mode):
            yield SourceFile(name, path, status.st_size, bool(status.st_mode & 0o111))
        else:
            raise BundleError(f"{name} is neither a file nor a folder; add it to .remoraignore")


def _rules_of(folder: Path, prefix: str) -> Iterator[_Rules]:
    from pathspec import GitIgnoreSpec

    lines: list[str] = []
    for name in IGNORE_FILES:
        path = folder / name
        try:
            if path.is_file():
                lines += path.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise BundleError(f"cannot read {prefix}{name}: {error.strerror}") from error
    if lines:
        try:
            yield _Rules(prefix, GitIgnoreSpec.from_lines(lines))
        except ValueError as error:
            raise BundleError(f"an ignore file in {prefix or '.'} holds a bad pattern: {error}") from error


def _is_ignored(name: str, is_folder: bool, rules: tuple[_Rules, ...]) -> bool:
    """The deepest folder whose patterns mention the name decides; within one folder the last pattern does."""
    for rule in reversed(rules):
        own = name[len(rule.prefix) :] + ("/" if is_folder else "")
        included = rule.patterns.check_file(own).include
        if included is not None:
            return included
    return False


def _inside(root: Path, link: Path, name: str) -> Path:
    """Where a link leads, if that is inside the folder."""
    try:
        target = link.resolve(strict=True)
    except (OSError, RuntimeError):
        raise BundleError(f"the link {name} leads nowhere; remove it or add it to .remoraignore") from None
    if not target.is_relative_to(root):
        raise BundleError(
            f"the link {name} leaves the code folder (to {target}); copy the file or add it to .remoraignore"
        )
    return target


def _status(path: Path, name: str) -> os.stat_result:
    try:
        return path.stat(follow_symlinks=False)
    except OSError as error:
        raise BundleError(f"cannot read {name}: {error.strerror}") from error
