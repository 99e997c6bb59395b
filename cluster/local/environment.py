"""The environment that the head, nodes and all processes that connect to them share."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection
from pathlib import Path

from cluster.local import joined
from cluster.local.certificates import own_environment
from cluster.local.folders import ClusterFolders
from cluster.ray.certificates import TLS_VARIABLES
from cluster.ray.job_api import PORT_VARIABLE
from cluster.ray.joining import FORKED_VARIABLE, NODE_VARIABLE, RAY_SETTINGS, token_environment
from remora.process_log import FORMAT_VARIABLE

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
    *TLS_VARIABLES,
)

#: Settings of the service begin like this; those in `_OF_MACHINES` are of machines.
_SETTINGS = "REMORA_"
_OF_MACHINES = (FORKED_VARIABLE, FORMAT_VARIABLE, PORT_VARIABLE, "REMORA_JOB_UIDS", "REMORA_NETWORK_RULES")
#: What the service shows to its database and its cloud: machines never need it, whatever runs on them.
_OF_THE_SERVICE = ("PG", "AZURE_", "IDENTITY_", "MSI_")

#: That of this package: a checkout, or a folder in the installed wheel.
_ROOT = Path(__file__).resolve().parents[2]


def ray_environment(home: Path) -> dict[str, str]:
    """Variables that a process needs to work with the cluster of this home; makes the token when there is none.

    Where the cluster uses TLS they name the service's own certificate.  Raises ProviderError when it cannot be made.
    Those of a cluster that Remora did not start are its own.
    """
    folders = ClusterFolders(home.resolve())
    if (other := joined.read(folders)) is not None:
        return {"PYTHONPATH": _python_path(), **other.variables}
    return {
        "PYTHONPATH": _python_path(),
        **token_environment(str(_token(folders))),
        **own_environment(folders),
        **RAY_SETTINGS,
    }


def process_environment(home: Path, **variables: str) -> dict[str, str]:
    """The whole environment for a new process: ours, without what points to other clusters, and `variables`."""
    return {**_inherited(_FOREIGN), **ray_environment(home), **variables}


def strangers_environment(**variables: str) -> dict[str, str]:
    """The environment for a process of the service that has nothing to do with Ray, and gets none of its secrets."""
    inherited = _inherited((*_FOREIGN, *token_environment("")))
    return {**inherited, "PYTHONPATH": _python_path(), **variables}


def machine_environment(home: Path, **variables: str) -> dict[str, str]:
    """The environment for a new head or node: that of the service, without what is for the service alone.

    So the address and the password of the database, keys of secrets, identities in clouds and the operator's token are
    in the memory of no process of Ray, and of nothing that Ray starts.
    """
    return {**_inherited_by_machines(_FOREIGN), **ray_environment(home), **variables}


def bare_environment(**variables: str) -> dict[str, str]:
    """The environment for a machine that finds its cluster by itself: nothing in it leads to our secret."""
    inherited = _inherited_by_machines((*_FOREIGN, *token_environment("")))
    return {**inherited, "PYTHONPATH": _python_path(), **variables}


def _inherited(without: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in without}


def is_of_machines(name: str) -> bool:
    """Whether a head or node may have a variable of the service (pure)."""
    return name in _OF_MACHINES or not name.startswith((_SETTINGS, *_OF_THE_SERVICE))


def _inherited_by_machines(without: Collection[str]) -> dict[str, str]:
    return {name: value for name, value in _inherited(without).items() if is_of_machines(name)}


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
