"""The facts of a job that its specification says as accepted, each read from it once (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from cluster.lazy_property import lazy
from cluster.policies.placement import Placement
from cluster.policies.policies import CapacityRule
from cluster.scheduling.fitting import Resources, at_most
from remora.spec.fields import SEARCHED, exit_codes_of
from remora.spec.worker_sizes import WorkerSizes, sizes_of
from trainers.environments.request import EnvironmentRequest


@dataclass(frozen=True, kw_only=True)
class RetryRules:
    """Which ends with an exit code are retried; without any rule all are."""

    #: First and last code of each range.
    exit_codes: tuple[tuple[int, int], ...] = ()
    #: Texts in a line of the attempt's log after which every code is retried.
    log_patterns: tuple[str, ...] = ()

    def allow(self, exit_code: int | None, log_match: str | None) -> bool:
        """Whether an attempt that ended with this code is retried; `log_match` is the pattern that its log had."""
        if not self.exit_codes and not self.log_patterns:
            return True
        is_listed = exit_code is not None and any(a <= exit_code <= b for a, b in self.exit_codes)
        return is_listed or log_match is not None

    def match(self, lines: Iterable[str]) -> str | None:
        """The first pattern that is found near the beginning of one of the lines; linear in their characters."""
        if not self.log_patterns:
            return None
        searched = (line[:SEARCHED] for line in lines)
        return next((one for line in searched for one in self.log_patterns if one in line), None)

    @property
    def in_words(self) -> str:
        """What is asked, for people."""
        asked = []
        if self.exit_codes:
            codes = ", ".join(str(a) if a == b else f"{a} to {b}" for a, b in self.exit_codes)
            asked.append(f"not among retry.on_exit_codes ({codes})")
        if self.log_patterns:
            asked.append("no line of its log has a text of retry.on_log_patterns")
        return " and ".join(asked)


@dataclass(frozen=True, kw_only=True)
class JobFacts:
    """What a job asks for.  Rows of it that are equal in these fields have the same one: `facts_of`."""

    job_id: str
    #: The JobSpec as accepted.
    spec: Mapping[str, Any] = field(hash=False)
    min_workers: int
    max_workers: int
    #: Ray resources of one worker.
    worker_resources: Mapping[str, float] = field(hash=False)

    @lazy
    def sizes(self) -> WorkerSizes:
        """The sizes that its worker group may have.  Raises NoSizePossible."""
        return sizes_of(self.spec, self.min_workers, self.max_workers)

    @lazy
    def placement(self) -> Placement:
        """Which nodes it accepts."""
        asked = self._section("placement")
        capacity = asked.get("capacity")
        return Placement(
            pools=tuple(asked.get("pools", ())),
            zones=tuple(asked.get("zones", ())),
            capacity=None if capacity is None else CapacityRule(capacity),
            needs_fabric=asked.get("fabric") == "infiniband",
        )

    @lazy
    def workers_per_node(self) -> int | None:
        """The most workers of it on one node; None: as many as fit."""
        asked = self.spec.get("workers_per_node")
        return None if asked is None else int(asked)

    @lazy
    def placed_resources(self) -> Resources:
        """Resources of a worker where workers are placed: with its share of a node, where the job limits that."""
        most = self.workers_per_node
        return self.worker_resources if most is None else at_most(self.worker_resources, self.job_id, most)

    @lazy
    def environment(self) -> EnvironmentRequest | None:
        """The Python environment that is built for it; None: its workers have that of their nodes."""
        asked = self._section("environment")
        request = EnvironmentRequest(
            python=asked.get("python"),
            pip=tuple(asked.get("pip", ())),
            requirements=asked.get("requirements"),
            setup=asked.get("setup"),
            inherit=asked.get("inherit"),
        )
        return request if request.is_built else None

    @property
    def code(self) -> str | None:
        """Digest of its code; None: it has none."""
        return code_of(self.spec)

    @property
    def checkpoint_store(self) -> str | None:
        """Name of the store with its checkpoints; None: they are in the service's own storage."""
        return checkpoint_store_of(self.spec)

    @lazy
    def budget(self) -> float | None:
        """USD that it may spend; None sets no limit."""
        return self._limit("budget")

    @lazy
    def deadline_at(self) -> float | None:
        """When it is wanted, in seconds since 1970; None: at any time."""
        return self._limit("deadline")

    @lazy
    def retry_rules(self) -> RetryRules:
        """Which ends with an exit code are retried."""
        asked = self._section("retry")
        return RetryRules(
            exit_codes=tuple(exit_codes_of(one) for one in asked.get("on_exit_codes", ())),
            log_patterns=tuple(asked.get("on_log_patterns", ())),
        )

    @lazy
    def repeats_s(self) -> float:
        """Seconds between two checkpoints that it is asked for; 0 where it does not fix them.

        What has not been saved yet is counted besides, so that it is right also where checkpoints cost more than
        thought.
        """
        interval = self._section("checkpoint").get("interval")
        return float(interval) if isinstance(interval, int | float) else 0.0

    def _section(self, name: str) -> Mapping[str, Any]:
        found = self.spec.get(name)
        return found if isinstance(found, Mapping) else {}

    def _limit(self, name: str) -> float | None:
        value = self._section("limits").get(name)
        return None if value is None else float(value)


@lru_cache(4096)
def facts_of(facts: JobFacts) -> JobFacts:
    """The first of those that are equal to it, with what has been read of it.

    Rows are loaded in every tick, and few of them have another specification than before: their owner has changed
    the number of workers.
    """
    return facts


def code_of(spec: Mapping[str, Any]) -> str | None:
    """Digest of the code that a specification names; None: it names none."""
    return spec.get("code")


def checkpoint_store_of(spec: Mapping[str, Any]) -> str | None:
    """Name of the store for checkpoints that a specification names; None: it names none."""
    store: str | None = (spec.get("checkpoint") or {}).get("store")
    return store
