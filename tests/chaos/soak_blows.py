"""How the processes of a service and of its jobs are struck: found at random, and seen to be dead."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import psutil

from cluster.local.provider import LocalProvider
from tests.chaos.soak_rounds import Round
from tests.e2e.embedded import API, CONTROLLER, Embedded
from tests.e2e.processes import PATIENCE_S, is_alive, kill, processes_with, until

#: Seconds that a second controller may take to act when the first is silent, and how often it may have no chance to.
_TAKE_OVER_S, _TRIES = 40.0, 5
#: Blows to drivers and supervisors that may all have met the same job.
_ENDURED = 2


class StandBy:
    """A second controller of the service, which acts when the first one is silent."""

    def __init__(self, service: Embedded) -> None:
        self._home = service.home
        first = until(lambda: service.part(CONTROLLER), "the controller runs")
        #: It must want the very same cluster.
        self._environment: Mapping[str, str] = first.environ()
        self._started: subprocess.Popen[bytes] | None = None

    def process(self) -> psutil.Process:
        """It, started again when it was killed."""
        if self._started is None or self._started.poll() is not None:
            with (self._home / "logs" / "stand-by.log").open("ab") as log:
                self._started = subprocess.Popen(
                    [sys.executable, "-P", "-m", CONTROLLER],
                    env=self._environment, cwd=self._home, stdout=log, stderr=log, start_new_session=True,
                )  # fmt: skip
        return psutil.Process(self._started.pid)

    def end(self) -> None:
        """Nothing is left of it."""
        if self._started is not None:
            self._started.send_signal(signal.SIGCONT)
            self._started.terminate()
            self._started.wait(PATIENCE_S)


class Blows:
    """Strikes one process or node per round."""

    def __init__(self, service: Embedded, stand_by: StandBy, jobs: Mapping[str, int]) -> None:
        self._service = service
        self._stand_by = stand_by
        self._jobs = jobs
        #: How often a driver or supervisor was struck while the job was on nodes, and so may have been its own.
        self._endured: Counter[str] = Counter()
        #: What was struck, for the search for the reason of a failed run.
        self.reported: list[str] = []

    def strike(self, blow: Round) -> None:
        """Strike; returns when the victim is dead, or goes on after it was stopped."""
        self._stand_by.process()
        match blow.victim:
            case "api":
                self._kill(blow, lambda: _some(self._service.part(API)))
            case "controller":
                self._kill(blow, self._controllers)
            case "driver":
                self._kill(blow, self._drivers)
            case "supervisor":
                self._kill(blow, self._supervisors)
            case "node":
                self._take_node(blow)
            case "stopped controller":
                self._stop_the_acting_one()

    def _kill(self, blow: Round, find: Callable[[], list[psutil.Process]]) -> None:
        while True:
            if blow.victim in ("driver", "supervisor"):
                # Three losses of those without progress end a job, as they should (decision 0075).
                until(lambda: not self._at_their_limit(), "jobs that may have lost two attempts end")
                self._endured.update(self._on_nodes())
            found = until(find, f"there is a {blow.victim} to be killed")
            victim = found[blow.choice % len(found)]
            # It may end by itself in this very moment: then another one is found.
            with contextlib.suppress(psutil.NoSuchProcess):
                kill(victim)
                self.reported.append(f"{blow.victim} {victim.pid}")
                return

    def _controllers(self) -> list[psutil.Process]:
        return [*_some(self._service.part(CONTROLLER)), self._stand_by.process()]

    def _drivers(self) -> list[psutil.Process]:
        return self.drivers()

    def drivers(self) -> list[psutil.Process]:
        """Drivers, those that wait for an attempt included."""
        found = processes_with(str(self._service.home))
        return sorted((one for one in found if _name(one).startswith("ray::Driver")), key=lambda one: one.pid)

    def _supervisors(self) -> list[psutil.Process]:
        found = set()
        for shim in self.of_jobs():
            with contextlib.suppress(psutil.Error, KeyError):
                if any(word.endswith("command_shim.py") for word in shim.cmdline()):
                    found.add(int(shim.environ()["REMORA_SUPERVISOR"]))
        with contextlib.suppress(psutil.NoSuchProcess):
            return [psutil.Process(pid) for pid in sorted(found)]
        return []

    def of_jobs(self) -> list[psutil.Process]:
        """Whatever runs on behalf of the commands of the jobs."""
        found = processes_with("REMORA_JOB_ID=")
        return [one for one in found if _job_of(one) in self._jobs]

    def _take_node(self, blow: Round) -> None:
        home = self._service.home
        provider = LocalProvider(home, (home / "ray.address").read_text().strip())
        nodes = until(lambda: [one.node_id for one in provider.list() if one.is_running], "a node runs")
        victim = nodes[blow.choice % len(nodes)]
        provider.kill(victim)
        assert provider.processes(victim) == (), "it is gone at once"
        self.reported.append(f"node {victim}")

    def _stop_the_acting_one(self) -> None:
        """Stop the controller that has the lease until the other one has it."""
        for _ in range(_TRIES):
            owner = until(self._acting, "a controller acts")
            victim = psutil.Process(int(owner.rsplit(":", 2)[1]))
            victim.send_signal(signal.SIGSTOP)
            try:
                until(lambda: self._acting() not in (None, owner), "the other controller acts", _TAKE_OVER_S)  # noqa: B023
            except AssertionError:
                # It may have been stopped with SQLite's lock in hand, which keeps everybody from writing.
                self.reported.append(f"stopped controller {victim.pid}, in vain")
            else:
                self.reported.append(f"stopped controller {victim.pid}")
                return
            finally:
                victim.send_signal(signal.SIGCONT)
        raise AssertionError(f"in {_TRIES} tries no other controller took over from one that was stopped")

    def _at_their_limit(self) -> list[str]:
        return [job for job in self._on_nodes() if self._endured[job] >= _ENDURED]

    def _on_nodes(self) -> list[str]:
        """Jobs that have an attempt or are about to."""
        return [job for (job,) in self._rows("SELECT id FROM jobs WHERE state IN ('admitted', 'running')")]

    def _rows(self, query: str) -> list[tuple[str]]:
        path = f"file:{self._service.home}/remora.db?mode=ro"
        with contextlib.closing(sqlite3.connect(path, uri=True)) as db:
            return db.execute(query).fetchall()

    def _acting(self) -> str | None:
        """Owner of the controller's lease whose process lives."""
        rows = self._rows("SELECT owner FROM leases WHERE name = 'controller'")
        for (owner,) in rows:
            with contextlib.suppress(psutil.NoSuchProcess, IndexError, ValueError):
                if is_alive(psutil.Process(int(owner.rsplit(":", 2)[1]))):
                    return owner
        return None


@contextlib.contextmanager
def stand_by(service: Embedded) -> Iterator[StandBy]:
    """A second controller, for as long as the service runs."""
    second = StandBy(service)
    try:
        yield second
    finally:
        second.end()


def left_in_memory(attempt_ids: set[str]) -> list[Path]:
    """Folders of these attempts in the file system that lies in memory."""
    root = Path("/dev/shm") / f"remora-{os.getuid()}"
    return [one for one in root.glob("*") if one.name.startswith(tuple(attempt_ids))]


def _some(process: psutil.Process | None) -> list[psutil.Process]:
    return [] if process is None else [process]


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.NoSuchProcess:
        return ""


def _job_of(process: psutil.Process) -> str:
    try:
        return process.environ().get("REMORA_JOB_ID", "")
    except psutil.Error:
        return ""
