"""What the queue needs of a job's specification as accepted; each row reads it once (pure)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cluster.policies.placement import ANYWHERE, Placement
from cluster.policies.policies import CapacityRule
from remora.spec.fields import SEARCHED, exit_codes_of
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


def placement_of(spec: Mapping[str, Any]) -> Placement:
    """Which nodes the job accepts."""
    asked = spec.get("placement")
    if not isinstance(asked, Mapping):
        return ANYWHERE
    capacity = asked.get("capacity")
    return Placement(
        pools=tuple(asked.get("pools", ())),
        zones=tuple(asked.get("zones", ())),
        capacity=None if capacity is None else CapacityRule(capacity),
        needs_fabric=asked.get("fabric") == "infiniband",
    )


def environment_of(spec: Mapping[str, Any]) -> EnvironmentRequest | None:
    """The Python environment that is built for the job; None: its workers have that of their nodes."""
    asked = spec.get("environment")
    if not isinstance(asked, Mapping):
        return None
    request = EnvironmentRequest(
        python=asked.get("python"),
        pip=tuple(asked.get("pip", ())),
        requirements=asked.get("requirements"),
        setup=asked.get("setup"),
        inherit=asked.get("inherit"),
    )
    return request if request.is_built else None


def limit_of(spec: Mapping[str, Any], name: str) -> float | None:
    """The limit of that name as a number; None: the job has no such limit."""
    limits = spec.get("limits")
    value = limits.get(name) if isinstance(limits, Mapping) else None
    return None if value is None else float(value)


def retry_rules_of(spec: Mapping[str, Any]) -> RetryRules:
    """Which ends with an exit code are retried."""
    asked = spec.get("retry")
    if not isinstance(asked, Mapping):
        return RetryRules()
    return RetryRules(
        exit_codes=tuple(exit_codes_of(one) for one in asked.get("on_exit_codes", ())),
        log_patterns=tuple(asked.get("on_log_patterns", ())),
    )


def repeats_s(spec: Mapping[str, Any]) -> float:
    """Seconds between two checkpoints that the job is asked for; 0 where the job does not fix them.

    What has not been saved yet is counted besides, so that it is right also where checkpoints cost more than thought.
    """
    policy = spec.get("checkpoint")
    interval = policy.get("interval") if isinstance(policy, Mapping) else None
    return float(interval) if isinstance(interval, int | float) else 0.0
