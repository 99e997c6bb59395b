"""Separates requirements that only name packages of an index from those that may read files of the job's code (pure).

What only names packages installs wheels, which run nothing.  Anything else (a path, an editable package, a URL, an
option, a file of an unknown kind) may run code of the job, and belongs to that code.  In doubt it is anything else.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

_COMMENT = re.compile(r"(^|\s)#.*$")
_HASH = r"--hash=[a-z0-9]+:[0-9a-f]+"
_HASHES = re.compile(rf"\s*{_HASH}(\s+{_HASH})*\s*")
#: Ends of names that are files to uv.
_ARCHIVES = (
    ".whl",
    ".zip",
    ".tar",
    ".gz",
    ".bz2",
    ".xz",
    ".zst",
    ".lz",
    ".lzma",
    ".tgz",
    ".tbz",
    ".txz",
    ".tlz",
)
#: Kinds of a source in uv.lock that are below the code.
_PLACES = ("path", "directory", "editable", "virtual")
#: Keys of pylock.toml (PEP 751) for what is not in an index.
_NOT_INDEXED = frozenset({"path", "directory", "vcs", "archive"})


def only_names(pip: Iterable[str], file: str | None, text: str, project: str = "") -> bool:
    """Whether requirements, and those of a file with this text, name packages of an index and nothing else.

    `file` is its path below the code, `project` the text of the pyproject.toml that belongs to a uv.lock.
    """
    return all(_is_named(one) for one in pip) and (file is None or _file_only_names(file, text, project))


def _file_only_names(file: str, text: str, project: str) -> bool:
    name = file.rpartition("/")[2]
    if name.endswith((".txt", ".in")):
        return all(_is_named_in_a_file(line) for line in text.splitlines())
    try:
        document = tomllib.loads(text)
        if is_pylock(name):
            return _pylock_only_names(document.get("packages"))
        # One in a folder of the code may be a member of a workspace above it.
        if file == "pyproject.toml":
            return _project_only_names(document)
        return file == "uv.lock" and _lock_only_names(document, tomllib.loads(project))
    except ValueError:
        return False


def is_pylock(name: str) -> bool:
    """Whether a file of this name is a lock of PEP 751."""
    return re.fullmatch(r"pylock(\.[^.]+)?\.toml", name) is not None


def _is_named(line: str) -> bool:
    try:
        found = Requirement(line)
    except InvalidRequirement:
        return False
    return found.url is None and not found.name.lower().endswith(_ARCHIVES)


def _is_named_in_a_file(line: str) -> bool:
    """A line of requirements.txt: nothing, hashes, or a package with its hashes; it may go on in the next one."""
    bare = _COMMENT.sub("", line).strip().removesuffix("\\").strip()
    if not bare or _HASHES.fullmatch(bare):
        return True
    wanted, mark, hashes = bare.partition(" --hash=")
    return _is_named(wanted) and (not mark or _HASHES.fullmatch(mark + hashes) is not None)


def _project_only_names(document: Mapping[str, Any]) -> bool:
    """pyproject.toml with a list of dependencies, and without `[tool.uv]`, which may give them other sources."""
    project, tools = document.get("project"), document.get("tool", {})
    if not isinstance(project, dict) or not isinstance(tools, dict) or "uv" in tools:
        return False
    wanted = project.get("dependencies")
    return (
        not project.get("dynamic")
        and isinstance(wanted, list)
        and all(isinstance(one, str) and _is_named(one) for one in wanted)
    )


def _lock_only_names(document: Mapping[str, Any], project: Mapping[str, Any]) -> bool:
    """uv.lock in which the project itself, which is not installed, is all that is below the code."""
    table, packages = project.get("project"), document.get("package", [])
    own = table.get("name") if isinstance(table, dict) else None
    if not isinstance(own, str) or not isinstance(packages, list):
        return False
    return all(isinstance(one, dict) and _is_indexed(one, own) for one in packages)


def _is_indexed(package: Mapping[str, Any], own: str) -> bool:
    name, source = package.get("name"), package.get("source", {})
    if not isinstance(name, str) or not isinstance(source, dict):
        return False
    places = [source[kind] for kind in _PLACES if kind in source]
    is_own = canonicalize_name(name) == canonicalize_name(own)
    return not places or (is_own and places == ["."])


def _pylock_only_names(value: object) -> bool:
    """Whether no part of the packages of pylock.toml lies outside of an index that is reached by HTTP."""
    if isinstance(value, dict):
        return all(_is_http(key, part) and _pylock_only_names(part) for key, part in value.items())
    return all(_pylock_only_names(part) for part in value) if isinstance(value, list) else True


def _is_http(key: str, value: object) -> bool:
    if key in ("url", "index"):
        return isinstance(value, str) and value.startswith(("https://", "http://"))
    return key not in _NOT_INDEXED
