"""The environment that the head, nodes and all processes that connect to them share."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection
from pathlib import Path

from cluster.local.folders import ClusterFolders
from cluster.ray.joining import NODE_VARIABLE, RAY_SETTINGS, token_environment

#: Every process of a machine carries the machine's mark in this variable, so that nothing of it is ever left behind.
#: The mark names the home too: another cluster on this host may have a machine of the same name.
MACHINE_VARIABLE = "REMORA_MACHINE"

#: What would make our processes meet another cluster, show another secret or belong to another machine; and who started
#: us, whose token is nothing for jobs.
_FOREIGN = (
    "REMORA_TOKEN",
    MACHINE_VARIABLE,
    NODE_VARIABLE,
    "RAY_ADDRESS",
    "RAY_AUTH_TOKEN",
    "RAY_NAMESPACE",
    "RAY_TMPDIR",
)

#: That of this package: a checkout, or a folder in the installed wheel.
_ROOT = Path(__file__).resolve().parents[2]


def ray_environment(home: Path) -> dict[str, str]:
    """Variables that a process needs to work with the cluster of this home; makes the token when there is none."""
    return {
        "PYTHONPATH": _python_path(),
        **token_environment(str(_token(ClusterFolders(home.resolve())))),
        **RAY_SETTINGS,
    }


def process_environment(home: Path, **variables: str) -> dict[str, str]:
    """The whole environment for a new process: ours, without what points to other clusters, and `variables`."""
    return {**_inherited(_FOREIGN), **ray_environment(home), **variables}


def bare_environment(**variables: str) -> dict[str, str]:
    """The environment for a machine that finds its cluster by itself: nothing in it leads to our secret."""
    return {**_inherited((*_FOREIGN, *token_environment(""))), "PYTHONPATH": _python_path(), **variables}


def _inherited(without: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in without}


def _python_path() -> str:
    """The folder of these packages first: they are not installed under their own names."""
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    return os.pathsep.join([str(_ROOT), *(part for part in others if part != str(_ROOT))])


def _token(folders: ClusterFolders) -> Path:
    """The file with the cluster's secret, readable by its owner only."""
    path = folders.token
    if not path.exists():
        folders.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_hex(32))
        try:
            # A link, not a rename: when two processes do this at once, both end up with the same secret.
            os.link(draft, path)
        except FileExistsError:
            pass
        finally:
            draft.unlink()
    return path
