"""What the environment of a node has that environments of jobs inherit, and with it must not install again."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import re
import sys
from collections.abc import Mapping, Sequence

from trainers.environments.request import INHERITED, NodePackages

#: Packages that are loaded where PyTorch is; others that it requires are loaded only when a script uses them.
_LOADED_WITH_TORCH = ("numpy", "tqdm", "typing-extensions")
#: Packages that PyTorch requires for an accelerator.
_LIBRARY = re.compile(r"(nvidia|cuda|triton|pytorch-triton)[a-z0-9-]*")


def node_packages() -> NodePackages:
    """What this interpreter's environment has."""
    try:
        torch: str | None = importlib.metadata.version(INHERITED).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        torch = None
    beside = () if torch is None else _loaded_with_torch()
    return NodePackages(python=f"{sys.version_info[0]}.{sys.version_info[1]}", torch=torch, beside=beside)


@functools.cache
def _loaded_with_torch() -> tuple[str, ...]:
    """Packages of the node that an interpreter has loaded with PyTorch, as `name==version`."""
    found = []
    for name in _LOADED_WITH_TORCH:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found.append(f"{name}=={importlib.metadata.version(name).partition('+')[0]}")
    return tuple(found)


def same_versions(found: Mapping[str, str], beside: Sequence[str]) -> list[str]:
    """Constraints that change no package of `found` but those of `beside`; none where these are the same already.

    `found` are the versions that requirements lead to without constraints, `beside` has lines `name==version`.
    """
    names = {line.partition("==")[0] for line in beside}
    if not any(f"{name}=={found[name]}" not in beside for name in names & found.keys()):
        return []
    return [*(f"{name}=={version}" for name, version in found.items() if name not in names), *beside]


def not_installed() -> list[str]:
    """Packages that an environment has from the node: PyTorch, and the libraries of its accelerator."""
    try:
        needed = importlib.metadata.requires(INHERITED) or []
    except importlib.metadata.PackageNotFoundError:
        needed = []
    names = [match.group() for line in needed if (match := _LIBRARY.match(line))]
    return [INHERITED, *dict.fromkeys(names)]
