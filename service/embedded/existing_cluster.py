"""Takes part in a Ray cluster that Remora did not start, and leaves it as it was."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.existing.member import start_member
from cluster.existing.sentences import address_problem
from cluster.local import head, joined, machine
from cluster.local.environment import process_environment
from cluster.local.folders import ClusterFolders
from cluster.local.records import MachineRecord
from cluster.provider import ProviderError
from service.settings import Settings

#: Seconds for each step of `service.embedded.existing_checks`.
_TIMEOUTS = {"look": 60.0, "join": 180.0, "leave": 130.0}


class ClusterUnusable(Exception):
    """Remora cannot run on the existing cluster; the message has one sentence for each thing that is missing."""


@dataclass(frozen=True)
class JoinedCluster:
    """What was found of the cluster when this machine joined it."""

    nodes: int
    notes: tuple[str, ...]


class MemberPart:
    """This machine's member of the existing cluster, in place of a head."""

    def __init__(self, settings: Settings) -> None:
        self._home = settings.home
        self._address = settings.ray_address
        self._member: MachineRecord | None = None

    @property
    def address(self) -> str:
        """The `host:port` of the cluster's head."""
        return self._address

    def start(self, _: str) -> None:
        """Adopt the member that runs, else start one.  Raises ProviderError."""
        self._member = start_member(self._home, self._address)

    def is_alive(self) -> bool:
        """True while its process runs; it ends soon after the cluster's head."""
        return self._member is not None and self._member.is_running

    def is_ready(self) -> bool:
        """True when the cluster's head can be reached."""
        return self._member is not None and head.is_reachable(self._member)

    def end(self) -> None:
        """Kill it."""
        head.stop_head(self._home, grace_s=0)

    def where(self) -> str:
        """Where the cluster is."""
        return f"{self._address}, which Remora did not start"

    def complaint(self) -> str:
        """What its log says."""
        return machine.complaint(ClusterFolders(self._home).logs / "head.log")


def join(settings: Settings) -> JoinedCluster:
    """Join the cluster at `settings.ray_address`, with a member on this machine.

    Raises ClusterUnusable when jobs could not run there, and ProviderError; this machine has no part in it then that it
    did not have before.
    """
    address = settings.ray_address
    runs = head.find_head(settings.home) is not None
    is_new = take_part(settings.home, address)
    try:
        _require(_step("look", settings))
        start_member(settings.home, address)
        found = _require(_step("join", settings))
    except (ClusterUnusable, ProviderError):
        # Drivers of jobs may be on one that ran.
        if not runs:
            head.stop_head(settings.home, grace_s=0)
        # Where it was part of the cluster before, something of it may still be there.
        if is_new:
            forget(settings.home)
        raise
    return JoinedCluster(int(found.get("nodes", 0)), tuple(map(str, found["notes"])))


def take_part(home: Path, address: str) -> bool:
    """Write down that this home is part of the cluster at `address`, before anything is done there.

    False when that was known before.  Raises ClusterUnusable for what is no address, and while it is part of another
    one, and ProviderError.
    """
    if (problem := address_problem(address)) is not None:
        raise ClusterUnusable(problem)
    folders = ClusterFolders(home)
    known = joined.read(folders)
    if known is not None and known.address != address:
        raise ClusterUnusable(
            f"this home is part of the Ray cluster at {known.address}, where something of it may be left: leave that"
            f" with `remora down --ray-address {known.address}`, or give another --home"
        )
    running = head.find_head(home)
    if running is not None and running.ray_address != address:
        raise ClusterUnusable(
            f"another cluster of this home runs, at {running.ray_address}: end it with `remora down`, or give another"
            " --home"
        )
    joined.write(folders, address, os.environ, Path.home())
    return known is None


def membership_problem(settings: Settings) -> str | None:
    """Why this home cannot have the cluster of the settings, as a sentence; None: it can.

    It may still be part of another one, or be one in which tokens would keep no one apart: the member runs as the user
    of the service, and any Ray program of the cluster may run code on it.
    """
    if settings.cloud == "existing" and settings.authentication == "required":
        return (
            "REMORA_AUTHENTICATION=required keeps no one apart on an existing Ray cluster: its programs can run code"
            " here as this user, who reads the database and the keys of the service. Start without it where all who"
            " use that cluster may do all of that, or use a cluster that Remora starts"
        )
    known = joined.read(ClusterFolders(settings.home))
    if known is None or settings.cloud == "existing":
        return None
    return (
        f"this home is part of the Ray cluster at {known.address}: leave it with `remora down`, or go on there with"
        f" --ray-address {known.address}"
    )


def leave(settings: Settings) -> str:
    """End all that is ours in the cluster that this home is part of, and this machine's member last.

    The member ends by itself, so that Ray learns of it at once.  Returns why some of it may remain, as a sentence;
    empty: nothing does.  Fine where the home is part of none.
    """
    known = joined.read(ClusterFolders(settings.home))
    if known is None:
        return ""
    there = settings.model_copy(update={"ray_address": known.address, "cloud": "existing"})
    try:
        start_member(settings.home, known.address)
        _require(_step("leave", there))
        head.stop_head(settings.home)
    except (ClusterUnusable, ProviderError) as error:
        return (
            f"the cluster at {known.address} may still have actors of Remora in its namespace remora: {error}; repeat"
            f" `remora down --ray-address {known.address}`, or remove {ClusterFolders(settings.home).joined} when that"
            " cluster is gone for good"
        )
    return ""


def forget(home: Path) -> None:
    """The home is part of no existing cluster any more; to be called when its member has ended."""
    joined.forget(ClusterFolders(home))


def _require(found: dict[str, Any]) -> dict[str, Any]:
    if found["problems"]:
        raise ClusterUnusable("; ".join(map(str, found["problems"])))
    return found


def _step(step: str, settings: Settings) -> dict[str, Any]:
    """What one step of the checks says, in a process of its own.  Raises ClusterUnusable when it says nothing."""
    address = settings.ray_address
    command = [sys.executable, "-P", "-m", "service.embedded.existing_checks", step]
    try:
        done = subprocess.run(
            [*command, "--home", str(settings.home), "--address", address],
            env=process_environment(settings.home, **_storage_of(settings)),
            cwd=settings.home,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUTS[step],
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterUnusable(
            f"the Ray cluster at {address} did not answer within {_TIMEOUTS[step]:g} s: check its address, and its"
            " secret and certificates in the variables RAY_AUTH_* and RAY_TLS_*"
        ) from error
    lines = done.stdout.strip().splitlines()
    try:
        found = json.loads(lines[-1] if lines else "")
    except ValueError as error:
        said = " ".join((done.stderr.strip().splitlines() or ["nothing"])[-1].split())[:300]
        raise ClusterUnusable(
            f"the Ray cluster at {address} could not be asked, and Ray said: {said}"
        ) from error
    return dict(found)


def _storage_of(settings: Settings) -> dict[str, str]:
    return {"REMORA_STORAGE_URL": settings.storage}
