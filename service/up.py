"""The embedded service in one command: `python -m service.up` starts a Ray head, the API and the controller.

The head and the nodes live in sessions of their own and survive this process, so that training goes on when the
service is killed; the API and the controller die with it.  The next service on the same home adopts what still runs.
"""

from __future__ import annotations

import argparse
import re
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError
from rich.console import Console

from cluster.local import head, machine
from cluster.provider import ProviderError
from remora import cgroups
from remora.client.credentials import OPERATOR_TOKEN_FILE
from remora.clusters import CLUSTER_FORM, DEFAULT_CLUSTER
from remora.isolation import IsolationImpossible, decide, sentence
from remora.machine_isolation import offered
from remora.network_filter import HeldRules, is_asked, need_users
from remora.terminal_text import neutral
from service.embedded import upkeep
from service.embedded.emulated_azure import EmulatorPart, cloud_problem
from service.embedded.existing_cluster import (
    ClusterUnusable,
    MemberPart,
    forget,
    join,
    leave,
    membership_problem,
    take_part,
)
from service.embedded.home_lock import HomeLock, HomeTaken
from service.embedded.parts import (
    ClusterPart,
    ServicePart,
    end_clusters,
    further_clusters,
    nodes_ready,
    policies_version,
    port_problem,
)
from service.embedded.upkeep import Part, PartView
from service.listening import isolation_of
from service.private_home import make_private
from service.settings import Settings

#: Seconds between two checks of the parts.
TICK_S = 0.2
#: Clusters beside the first: each has a head and a controller.
MOST_CLUSTERS = 8


class CannotStart(Exception):
    """The service cannot be started or kept; the message is one sentence for people."""


Source = ClusterPart | MemberPart | ServicePart


class _Group:
    """The parts of one cluster, with those that all clusters share beside the first."""

    def __init__(self, settings: Settings) -> None:
        self.cluster = settings.cluster
        self.head = MemberPart(settings) if settings.cloud == "existing" else ClusterPart(settings)
        self.sources: dict[Part, Source] = {
            Part.HEAD: self.head,
            Part.CONTROLLER: ServicePart(settings, Part.CONTROLLER, "service.controller"),
        }
        self.views: dict[Part, PartView] = {}
        #: It could not be started: the others go on without it.
        self.is_given_up = False

    def begin(self) -> None:
        """Nothing of it was looked at yet."""
        self.views = {part: PartView() for part in self.sources}

    def name(self, part: Part) -> str:
        """What people call a part of it."""
        return str(part) if self.cluster == DEFAULT_CLUSTER else f"{part} of the cluster {self.cluster}"


class Up:
    """The parts of one embedded service, kept running until `stop` is set."""

    def __init__(
        self, settings: Settings, lock: HomeLock, console: Console, clusters: Sequence[str] = ()
    ) -> None:
        """`clusters` are those beside the first."""
        self.stop = threading.Event()
        self._lock = lock
        self._settings = settings
        self._console = console
        self._first = _Group(settings)
        self._api = ServicePart(settings, Part.API, "service.api_process")
        self._first.sources[Part.API] = self._api
        if settings.cloud == "azure-emulated":
            self._first.sources[Part.EMULATOR] = EmulatorPart(settings)
        further = [_Group(settings.model_copy(update={"cluster": name})) for name in clusters]
        self._groups = (self._first, *further)
        for group in self._groups:
            group.begin()
        self._began_at = time.monotonic()
        self._nodes_reported = False
        #: Version of the policies that were applied, 0 for none; None until the API was asked.
        self._policies: int | None = None

    def run(self) -> None:
        """Keep all parts running until a signal.  Raises CannotStart when one of them cannot be made to work."""
        while not self.stop.is_set():
            if not self._lock.is_held:
                # No command could find this service any more, not even to end it.
                raise CannotStart(
                    f"{self._settings.home} was removed while the service ran in it, so it ends"
                )
            machine.reap()
            for group in self._groups:
                if group.is_given_up:
                    continue
                self._observe(group)
                for action in upkeep.decide(group.views, time.monotonic()):
                    self._apply(group, action)
            self._report_nodes()
            self.stop.wait(TICK_S)

    def shut_down(self) -> None:
        """End API, controllers and emulator, then all nodes and the heads; an existing cluster is left as it was.

        Raises ProviderError when something remains.
        """
        for part in (Part.CONTROLLER, Part.API, Part.EMULATOR):
            for group in self._groups:
                if (source := group.sources.get(part)) is not None:
                    source.end()
        if remains := leave(self._settings):
            self._say(f"note: {remains}")
        end_clusters(self._settings.home)
        if not remains:
            forget(self._settings.home)

    def _observe(self, group: _Group) -> None:
        for part, source in group.sources.items():
            before, name = group.views[part], group.name(part)
            alive = source.is_alive()
            ready = alive and (before.is_ready or source.is_ready())
            after = upkeep.observe(before, is_alive=alive, is_ready=ready, now=time.monotonic())
            group.views[part] = after
            # The controller is known through its nodes.
            if after.is_ready and not before.is_ready and (part is not Part.CONTROLLER or after.failures):
                self._say(
                    f"{name:<10} ready after {time.monotonic() - self._began_at:.1f} s: {source.where()}"
                )
            if before.is_alive and not after.is_alive and not self.stop.is_set():
                pause = upkeep.pause_s(after.failures)
                self._say(f"{name:<10} ended and starts again in {pause:g} s: {source.complaint()}")

    def _apply(self, group: _Group, action: upkeep.Action) -> None:
        source = group.sources[action.part]
        match action:
            case upkeep.GiveUp():
                said = f"the {group.name(action.part)} does not start: {source.complaint()}"
                if group is self._first:
                    raise CannotStart(said)
                group.is_given_up = True
                self._say(f"note: {said}; the other clusters go on, and `remora up` tries it again")
            case upkeep.End():
                source.end()
            case upkeep.Start():
                self._start(group, action.part, source)

    def _start(self, group: _Group, part: Part, source: Source) -> None:
        group.views[part] = upkeep.started(group.views[part], time.monotonic())
        try:
            source.start(group.head.address)
        except (ProviderError, OSError) as error:
            # Seen as an end at the next look, so that it is tried again after a pause.
            self._say(f"{group.name(part):<10} cannot be started: {error}")

    def _report_nodes(self) -> None:
        """Say once when the nodes that were asked for are ready, or that policies say how many there are."""
        wanted = self._settings.nodes
        if self._nodes_reported or not self._first.views[Part.API].is_ready:
            return
        if self._policies is None:
            self._policies = policies_version(self._api.url, self._settings)
        if self._policies:
            self._report_policies(", whatever --nodes and REMORA_NODES say")
            return
        if self._settings.cloud == "existing":
            self._nodes_reported = True
            self._say(f"{'nodes':<10} as many as the existing cluster has; look with: remora nodes")
            return
        if self._settings.cloud != "local":
            if self._policies is not None:
                self._report_policies(", as jobs need them")
            return
        if not wanted:
            return
        if nodes_ready(self._api.url, self._settings, self._first.head.address) >= wanted:
            self._nodes_reported = True
            self._say(f"{'nodes':<10} {wanted} ready after {time.monotonic() - self._began_at:.1f} s")

    def _report_policies(self, more: str) -> None:
        self._nodes_reported = True
        self._say(
            f"{'nodes':<10} as version {self._policies} of the policies says{more}; look with: remora policy show"
        )

    def _say(self, text: str) -> None:
        self._console.print(neutral(text))


def up(settings: Settings, console: Console, clusters: Sequence[str] = ()) -> None:
    """Run the embedded service in the foreground until SIGINT, SIGTERM or SIGHUP; with further `clusters`.

    Raises CannotStart, HomeTaken or ProviderError with one sentence.
    """
    with HomeLock(settings.home) as lock:
        make_private(settings.home)
        problem = cloud_problem(settings) or membership_problem(settings)
        problem = problem or port_problem(settings.host, settings.port)
        if problem:
            raise CannotStart(problem)
        service, rules = Up(settings, lock, console, clusters), HeldRules(offered())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Started by nohup, a closed terminal must not end it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: service.stop.set())
        console.print(f"Remora starts in {settings.home}; stop it with Ctrl-C or `remora down`.")
        if settings.cloud == "existing":
            _join(settings, console)
        elif cgroups.walls().folder is None:
            console.print(f"note: {cgroups.walls().sentence}")
        for note in _left_out(settings.home, clusters):
            console.print(f"note: {note}")
        if settings.cloud == "local":
            console.print(f"note: {_sentence_on_isolation(settings, rules)}")
        if settings.authentication == "required":
            console.print(
                f"Requests need a token; the first operator's is in {settings.home / OPERATOR_TOKEN_FILE}."
            )
        try:
            service.run()
            console.print("Stopping the API, the controller, the nodes and the head ...")
        finally:
            service.shut_down()
            if why := rules.end():
                console.print(f"note: {why}")
        console.print("Stopped; jobs and checkpoints are kept.")


def _left_out(home: Path, clusters: Sequence[str]) -> list[str]:
    """What runs of clusters for which nothing is started now."""
    return [
        f"the cluster {one.name} still runs and is led by no controller; name it with --cluster {one.name}"
        for one in further_clusters(home)
        if one.name not in clusters and head.find_head(one) is not None
    ]


def _join(settings: Settings, console: Console) -> None:
    """Join the existing cluster, and print what to know of it.  Raises CannotStart when jobs cannot run there."""
    console.print(f"Looking at the Ray cluster at {settings.ray_address} ...")
    try:
        found = join(settings)
    except ClusterUnusable as error:
        raise CannotStart(str(error)) from error
    console.print(f"It has {found.nodes} {'node' if found.nodes == 1 else 'nodes'} for jobs.")
    console.print(
        f"note: each program of that cluster can run code on this machine as this user, who reads {settings.home}"
    )
    for note in found.notes:
        console.print(neutral(f"note: {note}"))


def _sentence_on_isolation(settings: Settings, rules: HeldRules) -> str:
    """What keeps commands apart on the nodes of this machine.  Raises CannotStart when it is not what was asked for."""
    asked = isolation_of(settings)
    try:
        said = sentence(asked, offered(asked))
        need_users(decide(asked, offered(asked)))
    except IsolationImpossible as error:
        raise CannotStart(str(error)) from error
    return said if asked == "none" or not is_asked() else f"{said}; {rules.begin()}"


def down(home: Path, console: Console, ray_address: str = "") -> None:
    """End the service of a home: the one that runs, or what a killed one left behind, also in an existing cluster.

    `ray_address`: of a cluster from which all that is Remora's is removed, whichever service left it there.

    Raises HomeTaken when the running one does not end, ProviderError when something remains.
    """
    if ray_address:
        _remove_from(home, ray_address, console)
        return
    if not home.is_dir():
        ended = end_clusters(home)
        left = f"Ended {ended} left-over machines of {home}, which was removed."
        console.print(left if ended else f"Nothing to end: there is no {home}.")
        return
    lock = HomeLock(home)
    if lock.end_owner():
        console.print(f"Ended the service in {home}.")
    with lock:
        _, ended = _end_all(home, console)
    if ended:
        console.print(f"Ended {ended} left-over machines of {home}.")
    elif cgroups.walls().folder is not None:
        console.print(f"Nothing is left running of {home}.")
    else:
        console.print(f"Nothing that carries the mark of {home} is left running; {cgroups.walls().sentence}.")


def _remove_from(home: Path, ray_address: str, console: Console) -> None:
    """Remove all that is Remora's from the cluster at that address, through a member of this home."""
    with HomeLock(home):
        make_private(home)
        try:
            is_new = take_part(home, ray_address)
        except ClusterUnusable as error:
            raise CannotStart(str(error)) from error
        remains, _ = _end_all(home, console)
        if is_new:  # nothing of this home is there
            forget(home)
    if not remains:
        console.print(f"Nothing of Remora is left in the Ray cluster at {ray_address}.")


def _end_all(home: Path, console: Console) -> tuple[str, int]:
    """End all of a home, also what it has in an existing cluster.

    Returns why something may remain there, or an empty text, and how many machines were left of the home.
    """
    if remains := leave(Settings(home=home)):
        console.print(neutral(f"note: {remains}"))
    ended = end_clusters(home)
    if not remains:
        forget(home)
    return remains, ended


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m service.up", description="Run Remora on this machine.")
    parser.add_argument("--home", type=Path, help="folder of the service (default: the user's data folder)")
    parser.add_argument("--port", help="port of the API, 0 for a free one")
    parser.add_argument("--nodes", help="local nodes to keep alive")
    parser.add_argument("--cloud", help="where nodes are made: local, azure-emulated or azure")
    parser.add_argument(
        "--ray-address", help="HOST:PORT of the head of a Ray cluster to use, which is not started"
    )
    parser.add_argument("--node-cpus", help="CPUs that each node announces")
    parser.add_argument("--node-gpus", help="GPUs that each node announces")
    parser.add_argument(
        "--cluster", action="append", default=[], dest="clusters", help="one more Ray cluster; repeat it"
    )
    parser.add_argument(
        "--down", action="store_true", help="end the service of the home and what it left behind"
    )
    return parser.parse_args(words)


def _settings(arguments: argparse.Namespace) -> Settings:
    """Settings from the environment, overridden by arguments.  Raises CannotStart for values that are impossible."""
    given = {k: v for k, v in vars(arguments).items() if k not in ("down", "clusters") and v is not None}
    if arguments.ray_address is not None:
        if arguments.cloud not in (None, "existing"):
            raise CannotStart(
                "--ray-address is of a cluster that exists, and --cloud says how to make one: give one"
            )
        given["cloud"] = "existing"
    try:
        settings = Settings(**given)
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r})" for e in error.errors()
        )
        raise CannotStart("; ".join(problems)) from error
    if settings.cloud == "existing" and settings.ray_jobs_port:
        raise CannotStart("REMORA_RAY_JOBS_PORT is of heads that Remora starts; this cluster has its own")
    home = settings.home.expanduser().resolve()
    # The emulator's own file: that of a real place in Azure is not written over.
    place = home / "azure-emulated.json" if settings.cloud == "azure-emulated" else settings.azure_file
    # It starts all clusters, whichever one a setting names.
    return settings.model_copy(update={"home": home, "azure_file": place, "cluster": DEFAULT_CLUSTER})


def _clusters(named: Sequence[str], settings: Settings) -> list[str]:
    """The clusters beside the first, each once.  Raises CannotStart."""
    found = [one for one in dict.fromkeys(named) if one != DEFAULT_CLUSTER]
    for name in found:
        if not re.fullmatch(CLUSTER_FORM, name):
            raise CannotStart(
                f"--cluster {name[:80]!a}: a name has lowercase letters, digits and -, 32 characters at most"
            )
    if len(found) > MOST_CLUSTERS:
        raise CannotStart(
            f"--cluster names {len(found)} clusters, {MOST_CLUSTERS} are possible on one machine"
        )
    if found and settings.cloud != "local":
        raise CannotStart("--cluster is for nodes on this machine; for others, docs/clusters.md says how")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Entry point; 0 after an orderly end, 1 when the service cannot be started or ended, 2 for bad arguments."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    arguments = _arguments(words)
    try:
        settings = _settings(arguments)
        clusters = _clusters(arguments.clusters, settings)
    except CannotStart as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(neutral(f"error: {error}"), markup=False)
        return 2
    try:
        if arguments.down:
            down(settings.home, console, arguments.ray_address or "")
        else:
            up(settings, console, clusters)
    except (CannotStart, HomeTaken, ProviderError, head.HeadFailed, OSError) as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(neutral(f"error: {error}"), markup=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
