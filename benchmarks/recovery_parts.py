"""What the records of an attempt and the events of a job say about where time went (pure)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any, Protocol

#: Milliseconds of each part, in the order in which they follow each other.
Parts = dict[str, float]
#: Milliseconds that each of the three is to take.
GOALS_MS = {"loss": 500.0, "growth": 300.0, "submission": 2000.0}
#: The parts of growth in which the workers that train pause; the others train through those before.
PAUSED = (
    "all parked",
    "each has answered",
    "new ranks delivered",
    "rendezvous",
    "process group formed",
    "state moved",
    "first step",
)
#: Events of a job by which its submission is cut into parts, and what has happened until then.
OF_SUBMISSION = {
    "job.queued": "client started, code uploaded, job accepted",
    "attempt.created": "controller decided",
    "attempt.driver_started": "driver began",
    "worker_group.started": "actors started",
    "training.began": "command forked, script loaded, first step",
}


class Stored(Protocol):
    """A record of an attempt."""

    @property
    def at(self) -> float:
        """Seconds since 1970."""

    @property
    def kind(self) -> str:
        """What it is."""

    @property
    def body(self) -> dict[str, Any]:
        """Its content."""


def loss_parts(records: Sequence[Stored], killed_at: float) -> Parts:
    """From SIGKILL of a node to the next step of the others."""
    change = _event_after(records, killed_at, "worker_group.regrouped", cause="loss")
    began_at = change.at - change.body["data"]["pause_s"]
    noticed_s = change.body["data"]["parts"].get("noticed_s", 0.0)
    return _in_ms(
        {
            "closed socket seen": began_at - noticed_s - killed_at,
            "parked, driver heard": noticed_s,
            **_regrouping(change, records, "all parked, lost node known", "next step"),
        }
    )


def growth_parts(records: Sequence[Stored], added_at: float, ready_at: float) -> Parts:
    """From a node that is ready to the first step with a worker on it; what a node itself takes stands before."""
    ready = _event_after(records, added_at, "worker.ready")
    data = ready.body["data"]
    asked_at = ready.at - data["load_s"] - data["command_s"] - data["actor_s"]
    change = _event_after(records, ready.at, "worker_group.regrouped", cause="grow")
    began_at = change.at - change.body["data"]["pause_s"]
    return _in_ms(
        {
            "node seen by the driver": asked_at - ready_at,
            "worker's actor started": data["actor_s"],
            "interpreter forked": data["command_s"],
            "script loaded": data["load_s"],
            "step agreed on": began_at - ready.at,
            **_regrouping(change, records, "all parked", "first step"),
        }
    )


def submission_parts(events: Sequence[Any], began_at: float, seen_at: float) -> Parts:
    """From the command that submits a job until its first step is stored, by the events of the job."""
    parts: Parts = {}
    before = began_at
    for kind, what in OF_SUBMISSION.items():
        at = next(event.at for event in events if event.kind == kind)
        parts[what] = at - before
        before = at
    return _in_ms({**parts, "first step stored and seen": seen_at - before})


def paused_ms(growth: Mapping[str, float]) -> float:
    """Milliseconds for which the workers that train pause when another one joins them."""
    return round(sum(growth[name] for name in PAUSED), 1)


def medians(tries: Sequence[Parts]) -> Parts:
    """Of each part and of the whole, which is not the sum of the medians."""
    found = {name: round(median(one[name] for one in tries), 1) for name in tries[0]}
    return {**found, "total": round(median(sum(one.values()) for one in tries), 1)}


def _regrouping(change: Stored, records: Sequence[Stored], parked: str, step: str) -> Parts:
    data = change.body["data"]
    parts = data["parts"]
    own = {
        "rendezvous": parts.get("connect_s", 0.0),
        "process group formed": parts.get("form_s", 0.0),
        "state moved": parts.get("move_s", 0.0),
    }
    return {
        parked: parts["park_s"],
        "each has answered": parts["prepare_s"],
        "new ranks delivered": parts["join_s"] - sum(own.values()),
        **own,
        step: next(_steps(records, change.at, data["world_size"])) - change.at,
    }


def _steps(records: Sequence[Stored], after: float, world_size: int) -> Iterator[float]:
    for one in records:
        if one.kind == "metric" and one.at >= after and one.body["world_size"] == world_size:
            yield one.at


def _event_after(records: Sequence[Stored], after: float, kind: str, **data: Any) -> Stored:
    for one in records:
        is_of_kind = one.kind == "event" and one.at >= after and one.body["kind"] == kind
        if is_of_kind and data.items() <= one.body["data"].items():
            return one
    raise LookupError(f"no event {kind} after {after:.3f}")


def _in_ms(seconds: Mapping[str, float]) -> Parts:
    return {name: round(1000 * value, 1) for name, value in seconds.items()}
