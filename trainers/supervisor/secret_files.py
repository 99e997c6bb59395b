"""The folder with the secrets of one worker: files in memory that this user alone may read, for as long as it lives.

What a killed supervisor left is removed by the next one on the machine (`trainers.supervisor.node_sweep`).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from remora.private_files import is_private
from trainers.environments.commands import EnvironmentFailed
from trainers.node_folders import shared_folder, sweep_folders

#: Where Linux keeps files in memory.
_MEMORY = Path("/dev/shm")  # noqa: S108 - private below it
#: The variable of the command that names the folder.
FOLDER_VARIABLE = "REMORA_SECRETS"


def _root() -> Path:
    # Not below the folder of snapshots, whose sweep keeps what other workers of the attempt may use.
    return _MEMORY / f"remora-secrets-{os.getuid()}"


@contextlib.contextmanager
def secret_files(name: str, values: Mapping[str, str]) -> Iterator[Path | None]:
    """A folder of that name with a file for each value by its name, as long as the context is open.

    None without values.  Raises EnvironmentFailed where the node has no memory for files, and OSError.
    """
    if not values:
        yield None
        return
    root = _root()
    if not (_MEMORY.is_dir() and os.access(_MEMORY, os.W_OK)):
        raise EnvironmentFailed(
            f"environment.secrets: this node has no file system in memory at {_MEMORY}, and secrets are written to no"
            " disk; mount a tmpfs there"
        )
    root.mkdir(mode=0o700, exist_ok=True)
    if not is_private(root):
        raise EnvironmentFailed(f"environment.secrets: {root} is no folder of this user alone; remove it")
    with shared_folder(name, root) as folder:
        folder.chmod(0o700)
        for one, value in values.items():
            _write(folder / one, value.encode())
        yield folder


def with_folder(environment: Mapping[str, str], folder: Path | None) -> Mapping[str, str]:
    """Variables of the command alone, and not of its sidecar; those with secrets are read from their files."""
    return environment if folder is None else {**environment, FOLDER_VARIABLE: str(folder)}


def variable_files(
    uses: Mapping[str, str | None], values: Mapping[str, str], folder: Path | None
) -> Mapping[str, str]:
    """The files whose contents become variables of the command, by the names of these.

    `uses` are variables by the names of their secrets, None for a secret that is read from its file alone.
    """
    if folder is None:
        return {}
    return {variable: str(folder / name) for name, variable in uses.items() if variable and name in values}


def _write(path: Path, content: bytes) -> None:
    """Raises OSError, FileExistsError among them."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o400)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def sweep_secrets() -> None:
    """Remove the secrets of killed supervisors from the memory of this machine; makes nothing."""
    with contextlib.suppress(OSError):
        if is_private(_root()):
            sweep_folders(_root())
