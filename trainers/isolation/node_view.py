"""Decides which files of this node a command sees besides those of its job.

A command with a user of its own sees what is open to everyone.  One in namespaces of its own has the node's user, so
that no rights of files keep anything from it: it sees the system's folders, unchangeable, and what it is shown.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from trainers.isolation.mounts import MountStep, Shown, mount_steps
from trainers.isolation.named_environment import named_environment, platform_folders
from trainers.public_package import public_package

#: Devices that a command may use by their own rights or by their group, and those that programs need.
_DEVICES = ("dev/nvidia*", "dev/nvidia-caps/*", "dev/dri/render*", "dev/kfd", "dev/infiniband/*")
_USUAL_DEVICES = ("null", "zero", "full", "random", "urandom")
#: What stands in the root folder of a system and belongs to no person: programs, their settings, and the kernel's.
SYSTEM = frozenset(
    {"bin", "sbin", "usr", "lib", "lib32", "lib64", "libx32", "etc", "opt", "nix", "gnu", "proc", "sys"}
)
_OURS = Path(__file__).resolve().parents[1]
#: Files that programs find by a link in /etc.
_LINKED = (Path("/etc/resolv.conf"), Path("/etc/hosts"), Path("/etc/nsswitch.conf"))


def steps_for_user(shown: Iterable[Shown]) -> tuple[MountStep, ...]:
    """The mounts of a command with a user of its own, which needs `shown` of the node."""
    home = Path.home().resolve()
    # Covered whatever its rights are.
    hidden = [home] if len(home.parts) > 1 and home.is_dir() else []
    return mount_steps([_resolved(one) for one in (*_interpreter(), *shown)], hidden, is_closed)


def steps_for_namespaces(shown: Iterable[Shown]) -> tuple[MountStep, ...]:
    """The mounts of a command in namespaces of its own, which needs `shown` of the node."""
    every = [*_packages(), *_devices(), *(_same(one) for one in _LINKED if one.exists()), *shown]
    hidden = [*_not_of_system(), *(one for one in platform_folders() if _may_be_covered(one))]
    token = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", ""))
    if token.is_file() and not _may_be_covered(token.parent.resolve()):
        every.append(Shown(source=Path("/dev/null"), target=token.resolve()))
    return mount_steps([_resolved(one) for one in every], hidden, lambda _: False, rest_is_read_only=True)


def environment_of(program: str) -> list[Shown]:
    """What a command in namespaces of its own is shown because a job names its program by a path on this node."""
    return [_same(one) for one in named_environment(program)]


def device_groups(root: Path) -> tuple[int, ...]:
    """Groups that may use the accelerators and networks of this machine, where not everyone may."""
    found = set()
    for path in _accelerators(root):
        status = path.stat()
        if status.st_gid and not status.st_mode & stat.S_IWOTH:
            found.add(status.st_gid)
    return tuple(sorted(found))


def is_closed(folder: Path) -> bool:
    """Whether other users may not look into a folder; one that is not there hides nothing."""
    try:
        return not folder.stat().st_mode & stat.S_IXOTH
    except OSError:
        return False


def _accelerators(root: Path) -> list[Path]:
    every = (path for pattern in _DEVICES for path in root.glob(pattern))
    return [path for path in every if stat.S_ISCHR(path.stat().st_mode)]


def _devices() -> list[Shown]:
    """In a new /dev; a device may be written to in a folder that may not."""
    usual = (path for name in _USUAL_DEVICES if (path := Path("/dev", name)).exists())
    every = (*usual, *_accelerators(Path("/")))
    return [Shown(source=one, target=one, is_read_only=False) for one in every]


def _not_of_system() -> list[Path]:
    return [
        one for one in Path("/").iterdir() if one.name not in SYSTEM and one.is_dir() and not one.is_symlink()
    ]


def _may_be_covered(folder: Path) -> bool:
    """Whether it is there, and the system does without it: nothing runs without /usr."""
    is_of_system = len(folder.parts) == 2 and folder.name in SYSTEM - {"opt"}
    return folder.is_dir() and len(folder.parts) > 1 and not is_of_system


def _interpreter() -> list[Shown]:
    """This interpreter, its packages and ours: what a command of Python needs of the node."""
    folders = {Path(sys.prefix), Path(sys.base_prefix), public_package()}
    folders |= {Path(part) for part in sys.path if part and Path(part).is_dir()}
    return [_same(one) for one in folders if len(one.parts) > 1]


def _packages() -> list[Shown]:
    """The same, but for folders in which this process was started: the node's user may have anything there.

    Launchers of commands are programs of ours that lie outside of the public package.
    """
    prefixes = (Path(sys.prefix), Path(sys.base_prefix))
    names = {"site-packages", "dist-packages"}
    return [_same(_OURS)] + [
        one
        for one in _interpreter()
        if one.source in (*prefixes, public_package())
        or one.source.name in names
        or any(one.source.is_relative_to(prefix) for prefix in prefixes)
    ]


def _same(path: Path) -> Shown:
    return Shown(source=path, target=path)


def _resolved(one: Shown) -> Shown:
    return Shown(
        source=one.source.resolve(),
        target=one.target.resolve() if one.source == one.target else one.target,
        is_read_only=one.is_read_only,
        owner=one.owner,
    )
