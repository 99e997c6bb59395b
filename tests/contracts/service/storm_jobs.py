"""Jobs in a storm: their drivers are played, take what is free, train, save, and lose workers with their nodes."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.contracts.service.storm_members import Ray
from tests.service_fakes import FakeDriver, FakeLauncher

#: What a worker needs, so that two of them have capacity on a node.
WORKER = {"CPU": 2.0}
WORKERS_PER_NODE = 2


@dataclass
class Group:
    """The workers of one attempt, as its driver has them."""

    step: int = 0
    saved: int = 0
    workers: dict[str, int] = field(default_factory=dict)
    saved_at: float = 0.0
    has_ended: bool = False


class JobDrivers:
    """Plays the drivers of all jobs: they take free CPUs, train, save, and react to losses and drains."""

    def __init__(self, launcher: FakeLauncher, ray: Ray, choose: random.Random) -> None:
        self._launcher = launcher
        self._ray = ray
        self._random = choose
        self._groups: dict[str, Group] = {}
        #: The newest checkpoint of each job, and the steps that it has to do.
        self.saved: dict[str, int] = {}
        self.length: dict[str, int] = {}

    def play(self, now: float, passed_s: float) -> None:
        """What all drivers do within some seconds."""
        running = self._ray.running()
        leaving = {running[name] for name in self._ray.draining if name in running}
        for driver in list(self._launcher.drivers.values()):
            group = self._groups.setdefault(driver.plan.attempt_id, self._begin(driver))
            if driver.stop_reason is not None:
                group.has_ended, group.workers = True, {}
            if not group.has_ended:
                self._react(driver, group, set(running.values()), leaving, now)
            if not group.has_ended:
                self._gather(driver, group, set(running.values()) - leaving, now)
                self._train(driver, group, now, passed_s)

    def _begin(self, driver: FakeDriver) -> Group:
        saved = self.saved.get(driver.plan.job_id, 0)
        return Group(step=saved, saved=saved)

    def _react(
        self, driver: FakeDriver, group: Group, running: set[str], leaving: set[str], now: float
    ) -> None:
        """Workers on nodes that are gone are lost; those on nodes that go may leave in time, with a checkpoint."""
        lost = group.workers.keys() - running
        drained = group.workers.keys() & leaving if self._random.random() < 0.5 else set()
        if not lost and not drained:
            return
        if lost:
            said = "workers are gone with their nodes"
            driver.report("event", at=now, kind="node.lost", message=said, data={"ranks": []})
        elif group.workers:
            self._save(driver, group, now)
        group.workers = {at: n for at, n in group.workers.items() if at not in lost | drained}
        if sum(group.workers.values()) >= driver.plan.sizes.min:
            self._report_group(driver, group, now)
            return
        group.step, group.workers = group.saved, {}
        if self._random.random() < 0.5:
            group.has_ended = True
            driver.report("ended", at=now, end_reason="node_lost", message="too few workers are left")
        else:
            driver.report("progress", at=now, state="starting", world_size=0, workers={})

    def _gather(self, driver: FakeDriver, group: Group, open_at: set[str], now: float) -> None:
        """Take what is free, if that makes a group."""
        used: Counter[str] = Counter()
        for attempt_id in self._launcher.drivers:
            if (other := self._groups.get(attempt_id)) is not None:
                used.update(other.workers)
        wanted = driver.plan.sizes.max - sum(group.workers.values())
        found = dict(group.workers)
        for address in sorted(open_at):
            more = min(wanted, WORKERS_PER_NODE - used[address])
            if more > 0:
                found[address] = found.get(address, 0) + more
                wanted -= more
        if found != group.workers and sum(found.values()) >= driver.plan.sizes.min:
            begins = {} if group.workers else {"resumed_from_step": group.step}
            group.workers = found
            self._report_group(driver, group, now, **begins)

    def _report_group(self, driver: FakeDriver, group: Group, now: float, **more: Any) -> None:
        size = sum(group.workers.values())
        workers = dict(group.workers)
        driver.report("progress", at=now, state="running", world_size=size, workers=workers, **more)

    def _train(self, driver: FakeDriver, group: Group, now: float, passed_s: float) -> None:
        if not group.workers:
            return
        group.step += max(1, int(min(passed_s, 30.0)))
        driver.report("progress", at=now, step=group.step)
        if now - group.saved_at > 10.0:
            self._save(driver, group, now)
        if group.step >= self.length[driver.plan.job_id]:
            group.has_ended, group.workers = True, {}
            driver.report(
                "ended", at=now, end_reason="completed", message="every rank returned 0", exit_code=0
            )

    def _save(self, driver: FakeDriver, group: Group, now: float) -> None:
        group.saved, group.saved_at = group.step, now
        self.saved[driver.plan.job_id] = group.step
        driver.report(
            "checkpoint",
            at=now,
            step=group.step,
            world_size=sum(group.workers.values()),
            size_bytes=1,
            location=f"memory/{group.step}",
            files={"a": 1},
            committed_at=now,
        )
