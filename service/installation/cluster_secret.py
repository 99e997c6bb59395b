"""Gives the Ray cluster of an installation another secret, for which its head and its nodes are replaced.

Ray takes the secret of a process when that starts, and has one for all of a cluster, so that no two processes with
different ones can talk: `tests/contracts/cluster/test_ray_secret.py` measures it.  So everything of Ray ends, the
secret is replaced, and everything starts again: jobs resume from their newest checkpoints, and the API answers
throughout.

python -P -m service.installation.cluster_secret HOME is the part in between, as the user whose files the home has: root
follows nothing that this user has written there.  The next secret is its input; without any it makes one.
"""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from cluster.local.certificates import write_private
from cluster.local.folders import ClusterFolders
from cluster.provider import ProviderError
from service.embedded.parts import end_nodes
from service.installation import as_user
from service.installation.layout import Installation, InstallationProblem, Layout
from service.installation.supervisors import Supervisor
from service.installation.units import Kind, Unit

#: What a controller starts and the head keeps; ended after what would start it again.
_ORDER = (Kind.CONTROLLER, Kind.MEMBER, Kind.DRIVERS, Kind.HEAD)
_TIMEOUT_S = 120.0


def to_stop(units: Sequence[Unit]) -> list[Unit]:
    """The processes that know the secret, in the order in which they end; they start in the other one (pure)."""
    return sorted((one for one in units if one.kind in _ORDER), key=lambda one: _ORDER.index(one.kind))


def replace_secret(
    layout: Layout,
    installation: Installation,
    units: Sequence[Unit],
    supervisor: Supervisor,
    say: Callable[[str], None],
    secret: str = "",
) -> None:
    """End all of Ray, replace the secret, and start all of it.  Interrupted, it is to be called again.

    Without `secret` one is made.  Raises InstallationProblem, with the processes started again as far as they can be.
    """
    stopping = to_stop(units)
    try:
        for unit in stopping:
            supervisor.stop(unit.name)
        ended = _replaced_as(installation.user, layout.home, secret)
    finally:
        for unit in reversed(stopping):
            supervisor.start(unit.name)
    say(
        f"the cluster has another secret; {ended} nodes of this machine ended, and jobs resume from their checkpoints"
    )


def _replaced_as(user: str, home: Path, secret: str) -> str:
    """Do what is done in the home as its user; how many nodes ended.  Raises InstallationProblem."""
    module = "service.installation.cluster_secret"
    try:
        return as_user.call(user, module, str(home), given=secret, timeout_s=_TIMEOUT_S)
    except InstallationProblem as problem:
        raise InstallationProblem(
            f"the cluster's secret may be the old one, run this again: {problem}"
        ) from problem


def replace_in(home: Path, secret: str = "") -> int:
    """End what is left of the cluster in a home, and put another secret there; returns how many nodes there were.

    Without `secret` one is made.  Raises ProviderError and OSError; then the old secret is in place.
    """
    # Processes of this machine would wait for their head with the old secret.
    ended = end_nodes(home)
    # What the head knows is of nodes and drivers that are gone.
    state, old = home / "gcs", home / "gcs.old"
    # A head that starts after an interruption finds all of it or none; half of a database would not open.
    shutil.rmtree(old, ignore_errors=True)
    if state.exists():
        state.rename(old)
    write_private(ClusterFolders(home).token, (secret or secrets.token_hex(32)).encode())
    shutil.rmtree(old, ignore_errors=True)
    return ended


if __name__ == "__main__":
    try:
        print(replace_in(Path(sys.argv[1]), sys.stdin.read()))
    except (ProviderError, OSError) as error:
        sys.exit(str(error))
