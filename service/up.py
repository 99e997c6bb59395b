"""The embedded service in one command: `python -m service.up` starts a Ray head, the API and the controller.

The head and the nodes live in sessions of their own and survive this process, so that training goes on when the
service is killed; the API and the controller die with it.  The next service on the same home adopts what still runs.
"""

from __future__ import annotations

import argparse
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
from remora.isolation import IsolationImpossible, decide, sentence
from remora.machine_isolation import offered
from remora.network_filter import HeldRules, is_asked, need_users
from remora.terminal_text import neutral
from service.embedded import upkeep
from service.embedded.emulated_azure import EmulatorPart, cloud_problem
from service.embedded.home_lock import HomeLock, HomeTaken
from service.embedded.parts import (
    ClusterPart,
    ServicePart,
    end_cluster,
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


class CannotStart(Exception):
    """The service cannot be started or kept; the message is one sentence for people."""


class Up:
    """The parts of one embedded service, kept running until `stop` is set."""

    def __init__(self, settings: Settings, lock: HomeLock, console: Console) -> None:
        self.stop = threading.Event()
        self._lock = lock
        self._settings = settings
        self._console = console
        self._cluster = ClusterPart(settings)
        self._api = ServicePart(settings, Part.API, "service.main")
        self._controller = ServicePart(settings, Part.CONTROLLER, "service.controller")
        self._emulator = EmulatorPart(settings) if settings.cloud == "azure-emulated" else None
        self._views = {part: PartView() for part, _ in self._sources()}
        self._began_at = time.monotonic()
        self._nodes_told = False
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
            self._observe()
            for action in upkeep.decide(self._views, time.monotonic()):
                self._apply(action)
            self._tell_nodes()
            self.stop.wait(TICK_S)

    def shut_down(self) -> None:
        """End API, controller and emulator, then all nodes and the head.

        Raises ProviderError when something remains.
        """
        for part in (self._controller, self._api, self._emulator):
            if part is not None:
                part.end()
        end_cluster(self._settings.home)

    def _observe(self) -> None:
        machine.reap()
        for part, source in self._sources():
            before = self._views[part]
            alive = source.is_alive()
            ready = alive and (before.is_ready or source.is_ready())
            after = upkeep.observe(before, is_alive=alive, is_ready=ready, now=time.monotonic())
            self._views[part] = after
            # The controller is known through its nodes.
            if after.is_ready and not before.is_ready and (part is not Part.CONTROLLER or after.failures):
                self._say(
                    f"{part:<10} ready after {time.monotonic() - self._began_at:.1f} s: {source.where()}"
                )
            if before.is_alive and not after.is_alive and not self.stop.is_set():
                pause = upkeep.pause_s(after.failures)
                self._say(f"{part:<10} ended and starts again in {pause:g} s: {source.complaint()}")

    def _sources(self) -> list[tuple[Part, ClusterPart | ServicePart]]:
        sources: list[tuple[Part, ClusterPart | ServicePart]] = [
            (Part.HEAD, self._cluster),
            (Part.API, self._api),
            (Part.CONTROLLER, self._controller),
        ]
        return sources if self._emulator is None else [*sources, (Part.EMULATOR, self._emulator)]

    def _apply(self, action: upkeep.Action) -> None:
        source = dict(self._sources())[action.part]
        match action:
            case upkeep.GiveUp():
                raise CannotStart(f"the {action.part} does not start: {source.complaint()}")
            case upkeep.End():
                source.end()
            case upkeep.Start():
                self._start(action.part, source)

    def _start(self, part: Part, source: ClusterPart | ServicePart) -> None:
        self._views[part] = upkeep.started(self._views[part], time.monotonic())
        try:
            source.start(self._cluster.address)
        except (ProviderError, OSError) as error:
            # Seen as an end at the next look, so that it is tried again after a pause.
            self._say(f"{part:<10} cannot be started: {error}")

    def _tell_nodes(self) -> None:
        """Say once when the nodes that were asked for are ready, or that policies say how many there are."""
        wanted = self._settings.nodes
        if self._nodes_told or not self._views[Part.API].is_ready:
            return
        if self._policies is None:
            self._policies = policies_version(self._api.url, self._settings)
        if self._policies:
            self._tell_policies(", whatever --nodes and REMORA_NODES say")
            return
        if self._settings.cloud != "local":
            if self._policies is not None:
                self._tell_policies(", as jobs need them")
            return
        if not wanted:
            return
        if nodes_ready(self._api.url, self._settings, self._cluster.address) >= wanted:
            self._nodes_told = True
            self._say(f"{'nodes':<10} {wanted} ready after {time.monotonic() - self._began_at:.1f} s")

    def _tell_policies(self, more: str) -> None:
        self._nodes_told = True
        self._say(
            f"{'nodes':<10} as version {self._policies} of the policies says{more}; look with: remora policy show"
        )

    def _say(self, text: str) -> None:
        self._console.print(neutral(text))


def up(settings: Settings, console: Console) -> None:
    """Run the embedded service in the foreground until SIGINT, SIGTERM or SIGHUP.

    Raises CannotStart, HomeTaken or ProviderError with one sentence.
    """
    with HomeLock(settings.home) as lock:
        make_private(settings.home)
        problem = cloud_problem(settings) or port_problem(settings.host, settings.port)
        if problem:
            raise CannotStart(problem)
        service, rules = Up(settings, lock, console), HeldRules(offered())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # Started by nohup, a closed terminal must not end it.
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, lambda *_: service.stop.set())
        console.print(f"Remora starts in {settings.home}; stop it with Ctrl-C or `remora down`.")
        if cgroups.walls().folder is None:
            console.print(f"note: {cgroups.walls().sentence}")
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


def _sentence_on_isolation(settings: Settings, rules: HeldRules) -> str:
    """What keeps commands apart on the nodes of this machine.  Raises CannotStart when it is not what was asked for."""
    asked = isolation_of(settings)
    try:
        said = sentence(asked, offered(asked))
        need_users(decide(asked, offered(asked)))
    except IsolationImpossible as error:
        raise CannotStart(str(error)) from error
    return said if asked == "none" or not is_asked() else f"{said}; {rules.begin()}"


def down(home: Path, console: Console) -> None:
    """End the service of a home: the one that runs, or what a killed one left behind.

    Raises HomeTaken when the running one does not end, ProviderError when something remains.
    """
    if not home.is_dir():
        ended = end_cluster(home)
        left = f"Ended {ended} left-over machines of {home}, which was removed."
        console.print(left if ended else f"Nothing to end: there is no {home}.")
        return
    lock = HomeLock(home)
    if lock.end_owner():
        console.print(f"Ended the service in {home}.")
    with lock:
        ended = end_cluster(home)
    if ended:
        console.print(f"Ended {ended} left-over machines of {home}.")
    elif cgroups.walls().folder is not None:
        console.print(f"Nothing is left running of {home}.")
    else:
        console.print(f"Nothing that carries the mark of {home} is left running; {cgroups.walls().sentence}.")


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m service.up", description="Run Remora on this machine.")
    parser.add_argument("--home", type=Path, help="folder of the service (default: the user's data folder)")
    parser.add_argument("--port", help="port of the API, 0 for a free one")
    parser.add_argument("--nodes", help="local nodes to keep alive")
    parser.add_argument("--cloud", help="where nodes are made: local or azure-emulated")
    parser.add_argument("--node-cpus", help="CPUs that each node announces")
    parser.add_argument("--node-gpus", help="GPUs that each node announces")
    parser.add_argument(
        "--down", action="store_true", help="end the service of the home and what it left behind"
    )
    return parser.parse_args(words)


def _settings(arguments: argparse.Namespace) -> Settings:
    """Settings from the environment, overridden by arguments.  Raises CannotStart for values that are impossible."""
    given = {k: v for k, v in vars(arguments).items() if k != "down" and v is not None}
    try:
        settings = Settings(**given)
    except ValidationError as error:
        problems = (
            f"{'.'.join(map(str, e['loc']))}: {e['msg']} (got {e['input']!r})" for e in error.errors()
        )
        raise CannotStart("; ".join(problems)) from error
    home = settings.home.expanduser().resolve()
    # The emulator's own file: that of a real place in Azure is not written over.
    place = home / "azure-emulated.json" if settings.cloud == "azure-emulated" else settings.azure_file
    return settings.model_copy(update={"home": home, "azure_file": place})


def main(words: Sequence[str] | None = None) -> int:
    """Entry point; 0 after an orderly end, 1 when the service cannot be started or ended, 2 for bad arguments."""
    console = Console(highlight=False, soft_wrap=True, markup=False)
    arguments = _arguments(words)
    try:
        settings = _settings(arguments)
    except CannotStart as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(neutral(f"error: {error}"), markup=False)
        return 2
    try:
        down(settings.home, console) if arguments.down else up(settings, console)
    except (CannotStart, HomeTaken, ProviderError, head.HeadFailed, OSError) as error:
        Console(stderr=True, soft_wrap=True, highlight=False).print(neutral(f"error: {error}"), markup=False)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
