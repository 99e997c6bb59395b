"""What a job asks of its Python environment, and what of that the node's own packages provide (pure).

An environment that *inherits* is layered on the node's packages: PyTorch, which has gigabytes, is not installed again.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from trainers.environments.named_packages import only_names

#: The package that is inherited; what it needs itself (the libraries of its accelerator) comes with it.
INHERITED = "torch"
#: Changes when environments are built in another way, so that those of before are not used any more.
_FORMAT = 3
_COMMENT = re.compile(r"(^|\s)#.*$")


@dataclass(frozen=True, kw_only=True)
class EnvironmentRequest:
    """The environment that a job's specification describes."""

    #: Version of Python, `3.12`; None: that of the node.
    python: str | None = None
    #: Requirements as pip writes them.
    pip: tuple[str, ...] = ()
    #: A file of the job's code: `uv.lock` of a project, or one that `uv pip install -r` reads: `requirements.txt`,
    #: `pylock.toml`, `pyproject.toml`.
    requirements: str | None = None
    #: Commands of a shell that finish it, run in the folder of the code.
    setup: str | None = None
    #: Whether it is layered on the node's packages; None: where that is possible.
    inherit: bool | None = None

    @property
    def is_built(self) -> bool:
        """There is something to build."""
        return bool(self.python or self.pip or self.requirements or self.setup)


@dataclass(frozen=True, kw_only=True)
class NodePackages:
    """What a node has itself."""

    #: Version of its Python, `3.11`.
    python: str
    #: Version of its PyTorch, without the local part (`+cpu`); None: it has none.
    torch: str | None
    #: What is loaded with it, as `name==version`: an environment that inherits has the same where its packages agree.
    beside: tuple[str, ...] = ()


class EnvironmentImpossible(ValueError):
    """A node cannot have such an environment; the message says why and what to do."""


def inherits(asked: EnvironmentRequest, text: str, node: NodePackages) -> bool:
    """Whether the environment is layered on the node's packages; `text` is that of its file of requirements.

    Raises EnvironmentImpossible where it asks for that and the node's packages do not fit.
    """
    why = _why_not(asked, text, node)
    if why is not None and asked.inherit:
        raise EnvironmentImpossible(
            f"environment.inherit is true, and {why}; leave inherit out, or write false"
        )
    return why is None and asked.inherit is not False


def _why_not(asked: EnvironmentRequest, text: str, node: NodePackages) -> str | None:
    if asked.python is not None and asked.python != node.python:
        return f"the nodes have Python {node.python}, not {asked.python}"
    for one in _requirements([*asked.pip, *_lines_of(asked, text)]):
        if canonicalize_name(one.name) != INHERITED:
            continue
        if node.torch is None:
            return "the nodes have no PyTorch"
        if not one.specifier.contains(node.torch, prereleases=True):
            return f"the nodes have PyTorch {node.torch}, which does not satisfy {str(one)!r}"
    return None


def _requirements(lines: Iterable[str]) -> Iterable[Requirement]:
    """Requirements among the lines; others (options, URLs, paths, the lines of a lock file) are uv's to read."""
    for line in lines:
        bare = _COMMENT.sub("", line).strip().rstrip("\\").strip()
        try:
            yield Requirement(bare.partition(" --hash=")[0])
        except InvalidRequirement:
            continue


def _lines_of(asked: EnvironmentRequest, text: str) -> list[str]:
    """The requirements of a file, one in a line; of a lock the exact versions."""
    if asked.requirements is None or not asked.requirements.endswith((".toml", ".lock")):
        return text.splitlines()
    document = _document(text)
    project = document.get("project")
    lines = project.get("dependencies") if isinstance(project, dict) else None
    exact = [
        f"{one['name']}=={one['version']}"
        for one in _packages(document)
        if isinstance(one.get("name"), str) and isinstance(one.get("version"), str)
    ]
    return [line for line in lines if isinstance(line, str)] if isinstance(lines, list) else exact


def _document(text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError:
        # uv says what is wrong with it.
        return {}


def _packages(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The packages of a lock: `packages` in pylock.toml (PEP 751), `package` in uv.lock."""
    found = [*_list(document.get("packages")), *_list(document.get("package"))]
    return [one for one in found if isinstance(one, dict)]


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def reads_code(asked: EnvironmentRequest, text: str, project: str = "") -> bool:
    """Some of it may be made from files of the code, whose names do not say what is in them.

    True where there are commands, or anything but named packages of an index; `project` is the text of the
    pyproject.toml of a uv.lock.
    """
    return asked.setup is not None or not only_names(asked.pip, asked.requirements, text, project)


def digest_of(
    asked: EnvironmentRequest,
    contents: bytes,
    node: NodePackages,
    bundle: str | None,
    *,
    is_inherited: bool,
    project: bytes = b"",
) -> str:
    """32 hexadecimal digits that name the environment: equal requests on equal nodes have one environment.

    `contents` are those of the file of requirements, and `project` those of the pyproject.toml of a uv.lock; `bundle`
    is the digest of the code, which counts where it is read.
    """
    texts = contents.decode(errors="replace"), project.decode(errors="replace")
    facts = {
        "format": _FORMAT,
        "python": asked.python or node.python,
        "pip": sorted(asked.pip),
        "file": "" if asked.requirements is None else asked.requirements.rpartition("/")[2],
        "setup": asked.setup,
        "contents": hashlib.sha256(contents).hexdigest(),
        "project": hashlib.sha256(project).hexdigest(),
        "code": bundle if reads_code(asked, *texts) else None,
        "inherits": [node.python, node.torch, *node.beside] if is_inherited else None,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]
