"""How processes of this home reach a Ray cluster that Remora did not start: its secret and its certificates.

Ray's own variables say it to `remora up`, as they do to every Ray program; all later processes of the home read it from
`joined.json`, which is there only while such a cluster is used.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cluster.local.certificates import write_private
from cluster.local.folders import ClusterFolders
from cluster.provider import ProviderError
from cluster.ray.certificates import TLS_VARIABLES
from cluster.ray.joining import token_environment

#: Where Ray looks for a secret that no variable names, in the user's home.
_USUAL_PLACE = ".ray/auth_token"
#: Longest secret that is accepted, bytes; Ray's own have 64.
_TOKEN_BYTES = 4096
#: The same for processes of the service and the member: no report of use, and Python may differ in its last number.
#: A member that is asked to end does that now.
_ALWAYS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}


@dataclass(frozen=True)
class Joined:
    """An existing cluster by the address of its head (`host:port`), and the variables of Ray that lead into it."""

    address: str
    variables: Mapping[str, str]


def write(folders: ClusterFolders, address: str, environment: Mapping[str, str], user_home: Path) -> Joined:
    """Remember the cluster at `address`, as Ray's variables in `environment` describe it.

    `user_home` is where Ray keeps a secret of its own.  Raises ProviderError with one sentence.
    """
    tls = {name: environment[name] for name in TLS_VARIABLES if environment.get(name)}
    joined = Joined(address, {**_ALWAYS, **_secret(folders, environment, user_home), **tls})
    document = {"address": joined.address, "variables": dict(joined.variables)}
    try:
        folders.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(folders.joined, json.dumps(document).encode())
    except OSError as error:
        raise ProviderError(f"{folders.joined} cannot be written: {error}") from error
    return joined


def read(folders: ClusterFolders) -> Joined | None:
    """The existing cluster of this home; None where it has one of its own.  Raises ProviderError for a damaged file."""
    try:
        document = json.loads(folders.joined.read_bytes())
        return Joined(document["address"], dict(document["variables"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ProviderError(
            f"{folders.joined} cannot be read ({error}): remove it, and start with --ray-address again"
        ) from error


def forget(folders: ClusterFolders) -> None:
    """The home has no existing cluster any more."""
    folders.joined.unlink(missing_ok=True)
    folders.joined_token.unlink(missing_ok=True)


def _secret(folders: ClusterFolders, environment: Mapping[str, str], user_home: Path) -> dict[str, str]:
    """By which variables Ray's processes show the cluster's secret, if it has one; the order is Ray's own."""
    named, mode = environment.get("RAY_AUTH_TOKEN_PATH"), environment.get("RAY_AUTH_MODE", "").lower()
    given = environment.get("RAY_AUTH_TOKEN", "").strip()
    usual = user_home / _USUAL_PLACE
    if mode not in ("", "token", "disabled"):
        raise ProviderError(f"RAY_AUTH_MODE is {mode[:40]!a}; write token or disabled")
    if mode == "disabled" or not (mode or given or named or usual.is_file()):
        return {"RAY_AUTH_MODE": "disabled"}
    if given:
        if len(given) > _TOKEN_BYTES:
            raise ProviderError(
                f"RAY_AUTH_TOKEN has more than {_TOKEN_BYTES} bytes, which is no secret of Ray"
            )
        folders.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(folders.joined_token, given.encode())
        return token_environment(str(folders.joined_token))
    path = Path(named).expanduser().absolute() if named else usual
    if not path.is_file():
        raise ProviderError(
            f"there is no {path} with the secret of the Ray cluster: name its file in RAY_AUTH_TOKEN_PATH, or set"
            " RAY_AUTH_MODE=disabled for a cluster without one"
        )
    return token_environment(str(path))
