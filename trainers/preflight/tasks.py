"""Starts the measurements on the nodes and takes their answers, for the controller; needs `ray.init` before."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import trainers
from trainers.network_interface import interface_of
from trainers.preflight.answers import LinkAnswer, OwnAnswer
from trainers.ray_train import ray_nodes_of

log = logging.getLogger(__name__)

#: Gives these tasks a process of their own, which sees all GPUs although it reserves none: processes that wait on a
#: node are for workers.
_RUNTIME_ENV = {
    "env_vars": {"REMORA_PREFLIGHT_TASK": "1", "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}
}
#: Functions travel by their name: a node of an earlier release has no such module.
_NO_MODULE = "No module named 'trainers.preflight"
_LACKS_PREFLIGHT = "its Remora is of an earlier release, which has no preflight"
#: Characters of an answer that are read.
_MOST_CHARACTERS = 16_000

Pair = tuple[str, str]


@dataclass
class _Link:
    """A measurement between two nodes: first one of them looks for a port, then both take part."""

    backend: str
    limit_s: float
    #: By our node id.
    ray_nodes: dict[str, str]
    asked: list[Any]
    #: False: `asked` is the task that looks for a port.
    is_begun: bool = False


@dataclass
class RayPreflights:
    """The measurements that this process has asked nodes for.

    No method waits for a node; a call asks Ray at most once which nodes there are.
    """

    _own: dict[str, Any] = field(default_factory=dict)
    _links: dict[Pair, _Link] = field(default_factory=dict)

    def measure(self, node_ids: Collection[str], limit_s: float) -> None:
        """Have nodes measure themselves, for at most these seconds, unless they do or Ray does not know them."""
        asked = [one for one in node_ids if one not in self._own]
        for node_id, ray_node_id in (ray_nodes_of(asked) if asked else {}).items():
            self._own[node_id] = _on(ray_node_id, measure_here, limit_s)

    def link(self, backends: Mapping[Pair, str], limit_s: float) -> list[Pair]:
        """Have pairs of nodes measure what joins them, over `gloo` or `nccl`, unless they do already; which do now.

        The others are pairs of which Ray does not know both nodes: for these no answer comes.
        """
        asked = [pair for pair in backends if pair not in self._links]
        known = ray_nodes_of({node_id for pair in asked for node_id in pair}) if asked else {}
        for pair in asked:
            if all(node_id in known for node_id in pair):
                places = {node_id: known[node_id] for node_id in pair}
                self._links[pair] = _Link(backends[pair], limit_s, places, [_on(known[pair[0]], free_place)])
        return [pair for pair in backends if pair in self._links]

    def answers(self) -> list[OwnAnswer | LinkAnswer]:
        """What has ended since the last call."""
        found: list[OwnAnswer | LinkAnswer] = []
        own = {task: node_id for node_id, task in self._own.items()}
        for task in _ended(own):
            node_id = own[task]
            del self._own[node_id]
            text, why = _result(task)
            lacks_preflight = why == _LACKS_PREFLIGHT
            found.append(OwnAnswer(node_id, text, why, lacks_preflight))
        for pair, link in [*self._links.items()]:
            if (answer := self._step(pair, link)) is not None:
                del self._links[pair]
                found.append(answer)
        return found

    def keep_only(self, node_ids: Collection[str]) -> None:
        """End what was asked of other nodes: no one waits for it."""
        for node_id in [one for one in self._own if one not in node_ids]:
            ray.cancel(self._own.pop(node_id), force=True)
        for pair in [one for one in self._links if not set(one) & set(node_ids)]:
            for task in self._links.pop(pair).asked:
                ray.cancel(task, force=True)

    def _step(self, pair: Pair, link: _Link) -> LinkAnswer | None:
        if len(_ended(link.asked)) < len(link.asked):
            return None
        results = [_result(task) for task in link.asked]
        why = next((why for _, why in results if why is not None), None)
        text = results[0][0]
        if why is not None or text is None:
            return LinkAnswer(pair, None, why or "it did not answer")
        if link.is_begun:
            try:
                return LinkAnswer(pair, float(text), None)
            except ValueError:
                return LinkAnswer(pair, None, "it answered with no number")
        address, _, port = text.rpartition(":")
        link.is_begun = True
        link.asked = [
            _on(link.ray_nodes[node_id], link_here, rank, address, port, link.backend, link.limit_s)
            for rank, node_id in enumerate(pair)
        ]
        return None


def _on(ray_node_id: str, work: Any, *arguments: Any) -> Any:
    here = NodeAffinitySchedulingStrategy(ray_node_id, soft=False)
    return _remote(work).options(scheduling_strategy=here).remote(*arguments)


@cache
def _remote(work: Any) -> Any:
    """Once for all nodes, because Ray stores each one with the head."""
    return ray.remote(num_cpus=0, max_retries=0, runtime_env=_RUNTIME_ENV)(work)


def _ended(tasks: Collection[Any]) -> list[Any]:
    return ray.wait([*tasks], num_returns=len(tasks), timeout=0)[0] if tasks else []


def _result(task: Any) -> tuple[str | None, str | None]:
    """What a task has returned, or why it has not."""
    try:
        text, why = ray.get(task)
    except Exception as error:  # Ray's own, or an answer that is refused
        if _NO_MODULE in str(error):
            return None, _LACKS_PREFLIGHT
        return None, (str(error).strip().splitlines() or [type(error).__name__])[-1][:300]
    if isinstance(text, str):
        return text[:_MOST_CHARACTERS], None
    return None, str(why)[:300]


def measure_here(limit_s: float) -> tuple[str | None, str | None]:
    """Measure this machine in a process of its own; what that printed, or why it printed nothing."""
    return _run("own", limit_s)


def free_place() -> tuple[str | None, str | None]:
    """This node's address, with a port that is free now."""
    address = ray.util.get_node_ip_address()
    with socket.create_server((address, 0)) as found:
        return f"{address}:{found.getsockname()[1]}", None


def link_here(
    rank: int, address: str, port: str, backend: str, limit_s: float
) -> tuple[str | None, str | None]:
    """Measure what joins this machine and another one."""
    return _run("link", limit_s, str(rank), address, port, backend)


def _run(module: str, limit_s: float, *words: str) -> tuple[str | None, str | None]:
    ours, theirs = str(Path(trainers.__file__).parents[1]), os.environ.get("PYTHONPATH")
    variables = {**os.environ, "PYTHONPATH": f"{ours}{os.pathsep}{theirs}" if theirs else ours}
    interface = interface_of(ray.util.get_node_ip_address())
    if interface is not None:
        variables |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", f"trainers.preflight.{module}", str(limit_s), *words],
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"it did not answer within {limit_s:g} s"
    lines = done.stdout.decode(errors="replace").strip().splitlines()
    if done.returncode == 0 and lines:
        return lines[-1], None
    said = done.stderr.decode(errors="replace").strip().splitlines()
    ended = f"it ended with {done.returncode}"
    return None, f"{ended}: {said[-1]}" if said else ended
