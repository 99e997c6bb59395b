"""Which Python environment of its node a command in namespaces of its own is shown because the job names its program.

Commands there are the node's user, so a settings file says something only where no command could have written it.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import tempfile
from collections.abc import Iterator
from pathlib import Path

from trainers.node_folders import work_root

#: Characters of the settings of an environment that are read.
_SETTINGS_LENGTH = 10_000
#: Hidden folders of a home that hold interpreters and environments, and nothing else.
_OF_PYTHON = (".local/share/uv/python", ".pyenv/versions", ".conda/envs", ".virtualenvs")


def platform_folders() -> list[Path]:
    """Folders of the platform on this node, without links: no command may see them as a whole."""
    named = [os.environ.get("REMORA_HOME", "")]
    if token := os.environ.get("RAY_AUTH_TOKEN_PATH"):
        named.append(os.path.dirname(token))  # noqa: PTH120 - of "" there is none
    return [Path.home().resolve(), work_root().resolve(), *(Path(one).resolve() for one in named if one)]


def written_by_commands() -> list[Path]:
    """Folders of this node in which commands of jobs may make files, now or in another mode of isolation."""
    every = (tempfile.gettempdir(), "/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - they are refused
    return [work_root().resolve(), *(Path(one).resolve() for one in every)]


def named_environment(program: str, written: list[Path] | None = None) -> list[Path]:
    """The folders of the environment of a program that a job names by its path on this node, without links.

    [] for other programs, and where another user or a command (in the folders `written`) could have made what is read.
    An interpreter on which it is based counts where it is one: else any folder could be named as that.
    """
    written = written_by_commands() if written is None else written
    if not Path(program).is_absolute() or not os.access(program, os.X_OK):
        return []
    prefix = Path(program).parent.parent.resolve()
    if not _may_be_shown(prefix, written):
        return []
    if (prefix / "conda-meta").is_dir():
        return [prefix]
    named = _base(prefix / "pyvenv.cfg")
    if named is None:
        return []
    base = named.resolve()
    is_python = any(base.glob("lib/python3*/os.py"))
    return [prefix, base] if is_python and _may_be_shown(base, written) else [prefix]


def _base(settings: Path) -> Path | None:
    """What the settings of an environment name as its interpreter's folder; None: it is no environment."""
    # A link could be one to a file elsewhere.
    if settings.is_symlink() or not settings.is_file() or not _is_ours(settings):
        return None
    with contextlib.suppress(OSError), settings.open(encoding="utf-8", errors="replace") as file:
        for line in file.read(_SETTINGS_LENGTH).splitlines():
            name, _, value = line.partition("=")
            home = Path(value.strip())
            if name.strip().lower() == "home" and home.is_absolute():
                return home.parent
    return None


def _may_be_shown(folder: Path, written: list[Path]) -> bool:
    """Whether only the node's user and root can change a folder without links, and nothing of the platform is in it."""
    home, *others = platform_folders()
    # Neither what holds one of these, nor, but for the home, what lies in it.
    if any(one.is_relative_to(folder) for one in (home, *others, *written)):
        return False
    if any(folder.is_relative_to(one) for one in (*(one for one in others if one != home), *written)):
        return False
    return not _is_hidden(folder, home) and all(_is_ours(one) for one in _with_parents(folder))


def _is_hidden(folder: Path, home: Path) -> bool:
    if not folder.is_relative_to(home) or any(home / one in folder.parents for one in _OF_PYTHON):
        return False
    return any(part.startswith(".") and part != ".venv" for part in folder.relative_to(home).parts)


def _with_parents(folder: Path) -> Iterator[Path]:
    yield folder
    yield from folder.parents


def _is_ours(path: Path) -> bool:
    """Whether no other user may change what is there; in a folder such as /tmp everyone changes only his own."""
    try:
        status = path.stat()
    except OSError:
        return False
    if status.st_uid not in (0, os.geteuid()):
        return False
    is_sticky = bool(status.st_mode & 0o1000)
    if status.st_mode & 0o002 and not is_sticky:
        return False
    return not status.st_mode & 0o020 or is_sticky or _is_own_group(status.st_gid)


def _is_own_group(gid: int) -> bool:
    """The group that many systems give each user, or root's."""
    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}
