"""Has nodes build the environments of jobs that wait, at a low priority, so that they start without a build."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from remora.errors import BundleError
from remora.isolation import IsolationImpossible
from trainers.environments.build import EnvironmentFailed, environment
from trainers.environments.request import EnvironmentImpossible
from trainers.job_storage import code_storage
from trainers.node_folders import shared_folder, unpack_once
from trainers.plan import BuildAhead
from trainers.ray_train import ray_nodes_of
from trainers.storage import StorageError
from trainers.storage_grants import StorageGrant

log = logging.getLogger(__name__)

#: Builds at the same time in the whole cluster.
_MOST_AT_ONCE = 32
#: Ended builds that are remembered, so that they are not asked for at every tick.
_MOST_REMEMBERED = 4096
#: As of `nice`: a build gives way to what trains on the node.
_NICENESS = 15
#: Gives these tasks a process of their own: those that wait on a node are for workers.
_RUNTIME_ENV = {"env_vars": {"REMORA_BUILDS_AHEAD": "1"}}


class BuildsAhead:
    """The builds that this process has asked nodes for: one at a time on each node."""

    def __init__(self, granted: Callable[[BuildAhead], StorageGrant | None] = lambda _: None) -> None:
        """`granted` is asked for a grant to read the code of a build; None: its node needs none."""
        self._granted = granted
        #: By our node id: what is built there (None: it is being ended), with the task that does it.
        self._running: dict[str, tuple[object | None, Any]] = {}
        #: What ended, by node and key, the newest last; a build that failed is not tried again: the job's attempt says
        #: why.
        self._ended: dict[tuple[str, object], None] = {}

    def look(self, wanted: Sequence[BuildAhead]) -> None:
        """Start builds that are wanted and were not tried yet, and end those that are not wanted; does not wait.

        One that is wanted on no node is not started, and goes on where it has begun.
        """
        keys = {one.key for one in wanted}
        self._take_ended()
        for node, (key, task) in [*self._running.items()]:
            if key is not None and key not in keys:
                # It reports its end like any other: the node is free for the next one then.
                ray.cancel(task)
                self._running[node] = None, task
                log.info("no job waits any more for the environment that %s builds", node)
        asked = self._missing(wanted)
        if not asked:
            return
        known = ray_nodes_of(asked)
        for node, one in asked.items():
            if node in known:
                self._running[node] = one.key, _start(known[node], one, self._granted(one))

    @property
    def is_idle(self) -> bool:
        """No node builds anything that this process asked for."""
        return not self._running

    def _take_ended(self) -> None:
        if not self._running:
            return
        by_task = {task: (node, key) for node, (key, task) in self._running.items()}
        done, _ = ray.wait(list(by_task), num_returns=len(by_task), timeout=0)
        for task in done:
            node, key = by_task[task]
            del self._running[node]
            try:
                why = ray.get(task)
            except ray.exceptions.TaskCancelledError:
                continue
            except ray.exceptions.RayError as error:
                why = str(error)[:500]
            if key is None:
                continue
            if why is not None:
                log.warning("an environment was not built ahead on %s: %s", node, why)
            self._ended[node, key] = None
        while len(self._ended) > _MOST_REMEMBERED:
            del self._ended[next(iter(self._ended))]

    def _missing(self, wanted: Sequence[BuildAhead]) -> Mapping[str, BuildAhead]:
        """What each node without a build shall build next, by our node id."""
        asked: dict[str, BuildAhead] = {}
        for one in wanted:
            for node in one.nodes:
                if len(asked) + len(self._running) >= _MOST_AT_ONCE:
                    return asked
                if node not in self._running and node not in asked and (node, one.key) not in self._ended:
                    asked[node] = one
        return asked


def _start(ray_node_id: str, one: BuildAhead, grant: StorageGrant | None) -> Any:
    task = ray.remote(num_cpus=0, max_retries=0, runtime_env=_RUNTIME_ENV)(build_ahead)
    here = NodeAffinitySchedulingStrategy(ray_node_id, soft=False)
    return task.options(scheduling_strategy=here).remote(one, grant)


def build_ahead(one: BuildAhead, grant: StorageGrant | None = None) -> str | None:
    """Build the environment on this node unless it is there; returns why it could not, or None.

    `grant` lets it read the code; None: the node reaches the storage without one.
    """
    os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    name = f"ahead-{(one.bundle or 'none').removeprefix('sha256:')[:32]}-{os.getpid()}"
    try:
        with shared_folder(name) as folder:
            code: Path = unpack_once(code_storage(one, grant), one.bundle, folder)
            with environment(
                one.request,
                code,
                _say,
                bundle=one.bundle,
                isolation=one.isolation,
                most_processes=one.max_processes,
            ):
                return None
    except (
        EnvironmentFailed,
        EnvironmentImpossible,
        IsolationImpossible,
        BundleError,
        StorageError,
        OSError,
    ) as error:
        return str(error)[-500:]


def _say(line: str) -> None:
    log.info("%s", line)
