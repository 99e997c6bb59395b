"""What the measurements of a node before its first work mean, and which nodes are measured (pure).

A node that has joined the cluster stays `joined` until it has passed, so that the planner counts it as one that starts.
It fails for what it finds on itself.  A slow link says nothing of which of its ends is slow: a node fails for it where
it is slow with two neighbours.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from remora.states import NodeState
from service.queue.rows import NodeRow
from trainers.preflight.product import DIGEST

#: Characters of a node's answer, of a text in it, and devices in it.
MOST_CHARACTERS, MOST_TEXT, MOST_DEVICES = 16_000, 300, 64
#: MB per second that no network reaches.
MOST_MB_PER_S = 1e9
#: Times that a measurement is begun which ends without an answer, and neighbours that a node is measured with.
MOST_TRIES, MOST_LINKS = 3, 3
#: Seconds between two of them: a short fault of Ray is over by then.
PAUSE_S = 15.0
#: Seconds that a node waits for a neighbour that is being measured itself: nodes that are bought together are ready for
#: that at about the same time.
NEIGHBOUR_S = 20.0
#: Neighbours with which a link has to be slow before that is the node's.
SLOW_LINKS = 2


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a node has found out about itself."""

    #: Name of its GPUs; `cpu` where it has none.
    device: str
    #: GPUs that PyTorch sees; None: PyTorch does not say.
    gpus: int | None
    #: Of one GPU, the one with the least; of the machine where it has none.
    memory_bytes: int
    #: Digests of products, by device: one where all products were the same.
    digests: tuple[tuple[str, ...], ...]
    #: Seconds of the slowest product.
    product_s: float
    #: Devices whose memory does not hold what is written to it.
    bad_memory: tuple[str, ...] = ()
    #: The version of ROCm that its PyTorch was built for; None: it was not.
    hip: str | None = None
    #: Why not everything was measured.
    problem: str | None = None


@dataclass(frozen=True)
class Link:
    """What was measured with a neighbour."""

    neighbour: str
    #: MB (10^6 bytes) per second; None: it could not be measured.
    mb_per_s: float | None
    why: str | None = None


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """How far the measurement of a node is; times are those of one clock."""

    begun_at: float
    #: How often it has ended without an answer, and why the last time.
    tries: int = 0
    why: str | None = None
    #: When that was.
    ended_at: float = 0.0
    #: The Remora on the node is of a release that measures no nodes.
    lacks_preflight: bool = False
    measured: Measured | None = None
    #: When that was known, or the newest of its links.
    known_at: float = 0.0
    links: tuple[Link, ...] = ()

    @property
    def tried(self) -> frozenset[str]:
        """Neighbours that it was measured with."""
        return frozenset(link.neighbour for link in self.links)


@dataclass(frozen=True, kw_only=True)
class PreflightLimits:
    """What a node has to keep to."""

    #: Seconds within which it has to have been measured.
    limit_s: float
    #: MB per second with a neighbour; 0: any number.
    mb_per_s: float = 0.0


@dataclass(frozen=True)
class Verdict:
    """A node may get work, or must not."""

    has_passed: bool
    #: What was found, or why it fails.
    message: str


def to_measure(rows: Iterable[NodeRow], alive: Mapping[str, bool]) -> list[NodeRow]:
    """Nodes that have joined and may not get work yet; `alive` says by id which of them are members and stay."""
    return [row for row in rows if row.state is NodeState.JOINED and alive.get(row.id, False)]


def may_ask(preflight: Preflight, now: float) -> bool:
    """A node is asked at once, and again after a pause."""
    return preflight.measured is None and (preflight.tries == 0 or now - preflight.ended_at >= PAUSE_S)


def not_ready_yet(rows: Iterable[NodeRow]) -> tuple[str, ...]:
    """Ids of the nodes on which no worker may be placed where nodes are measured, also before they join.

    One that has failed is among them: Ray may not know yet that it drains.
    """
    return tuple(row.id for row in rows if row.ready_at is None and row.ended_at is None)


def read_measured(text: str) -> Measured:
    """What `trainers.preflight.own` has printed.  Raises ValueError for anything else."""
    if len(text) > MOST_CHARACTERS:
        raise ValueError("its answer is too long")
    try:
        said: Any = json.loads(text)
    except (ValueError, RecursionError):
        said = None
    said = said if isinstance(said, dict) else {}
    digests = _list(said, "digests")
    if not all(isinstance(one, list) for one in digests):
        raise ValueError("its answer has no list of digests")
    gpus = None if said.get("gpus") is None else int(_number(said, "gpus"))
    return Measured(
        device=_text(said.get("device")) or "cpu",
        gpus=gpus,
        memory_bytes=int(_number(said, "memory_bytes")),
        digests=tuple(tuple(_text(digest) or "" for digest in one[:MOST_DEVICES]) for one in digests),
        product_s=_number(said, "product_s"),
        bad_memory=tuple(_text(one) or "" for one in _list(said, "bad_memory")),
        hip=_text(said.get("hip")),
        problem=_text(said.get("problem")),
    )


def _list(said: Mapping[str, Any], name: str) -> list[Any]:
    found = said.get(name)
    if not isinstance(found, list) or len(found) > MOST_DEVICES:
        raise ValueError(f"its answer has no list {name!r} of at most {MOST_DEVICES}")
    return found


def _number(said: Mapping[str, Any], name: str) -> float:
    found = said.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found < 1e18:
        raise ValueError(f"its answer has no number {name!r}")
    return float(found)


def _text(value: object) -> str | None:
    return None if value is None else clean(str(value))


def clean(text: str) -> str:
    """A text of a node without what databases and terminals refuse: that becomes U+FFFD; at most `MOST_TEXT` long."""
    return "".join(one if one.isprintable() else "\ufffd" for one in text[:MOST_TEXT])


def read_link(neighbour: str, mb_per_s: float | None, why: str | None) -> Link:
    """What a node has answered about what joins it to a neighbour; what is no speed could not be measured."""
    if mb_per_s is not None and not 0 < mb_per_s < MOST_MB_PER_S:
        mb_per_s, why = None, "it answered with no speed"
    return Link(neighbour, mb_per_s, None if why is None else clean(why))


def fault_of(measured: Measured, resources: Mapping[str, float]) -> str | None:
    """Why a node that announces these resources must not get work, for what it found on itself; None: it may."""
    if measured.hip is not None:
        return (
            f"its PyTorch is built for AMD GPUs (ROCm {measured.hip}), on which Remora does not train: use sizes with"
            " NVIDIA GPUs or without GPUs"
        )
    announced = int(resources.get("GPU", 0))
    if measured.gpus is not None and measured.gpus < announced:
        return f"it announces {announced} GPUs, and PyTorch sees {measured.gpus}"
    wrong = [index for index, found in enumerate(measured.digests) if set(found) - {DIGEST}]
    if wrong:
        where = "its processor" if not measured.gpus else "GPU " + ", ".join(str(index) for index in wrong)
        return f"a product of two matrices of small integers was wrong on {where}"
    if measured.bad_memory:
        return f"the memory of {', '.join(measured.bad_memory)} does not hold what is written to it"
    if measured.problem is not None:
        return measured.problem
    if not measured.digests and measured.gpus is not None:
        return "nothing was computed on it"
    return None


def verdict(
    preflight: Preflight,
    resources: Mapping[str, float],
    limits: PreflightLimits,
    now: float,
    *,
    is_linking: bool,
    may_link: bool,
) -> Verdict | None:
    """What is known of a node at `now`; None: its measurement goes on.

    `is_linking`: it is being measured with a neighbour; `may_link`: there may soon be another one to be measured with.
    """
    is_late = now - preflight.begun_at > limits.limit_s
    measured = preflight.measured
    if measured is None:
        if preflight.lacks_preflight:
            return Verdict(True, f"it was not measured: {preflight.why}")
        if preflight.tries >= MOST_TRIES:
            return Verdict(False, f"it could not be measured: {preflight.why}")
        return Verdict(False, f"it did not answer within {limits.limit_s:g} s") if is_late else None
    why = fault_of(measured, resources)
    if why is not None:
        return Verdict(False, why)
    known = [(link.neighbour, link.mb_per_s) for link in preflight.links if link.mb_per_s is not None]
    if not any(speed >= limits.mb_per_s for _, speed in known):
        if len(known) >= SLOW_LINKS:
            found = " and ".join(f"{speed:.0f} MB/s with {neighbour}" for neighbour, speed in known)
            return Verdict(
                False, f"it exchanges {found}; REMORA_PREFLIGHT_MB_PER_S asks for {limits.mb_per_s:g}"
            )
        is_patient = now - preflight.known_at <= NEIGHBOUR_S
        waits = is_linking or (may_link and is_patient and len(preflight.links) < MOST_LINKS)
        if waits and not is_late:
            return None
    return Verdict(True, found_of(measured, preflight.links))


def found_of(measured: Measured, links: Iterable[Link]) -> str:
    """What was measured, in one sentence."""
    memory = f"{measured.memory_bytes / 1e9:.1f} GB of memory"
    device = f"{measured.gpus} GPUs ({measured.device}), each with" if measured.gpus else "a processor with"
    links = [*links]
    fastest = _fastest(links)
    if fastest is not None:
        link = f"{fastest.mb_per_s:.0f} MB/s to {fastest.neighbour}"
    elif links:
        link = f"what joins it to {links[-1].neighbour} could not be measured: {links[-1].why}"
    else:
        link = "no neighbour was free to be measured with"
    products = (
        f"products right in {measured.product_s * 1e3:.1f} ms"
        if measured.digests
        else "without PyTorch, so that nothing was computed"
    )
    return f"{device} {memory}, {products}; {link}"


def _fastest(links: Iterable[Link]) -> Link | None:
    known = [link for link in links if link.mb_per_s is not None]
    return max(known, key=lambda link: link.mb_per_s or 0.0, default=None)


def result_of(preflight: Preflight) -> dict[str, Any]:
    """What is stored with the node: JSON."""
    measured, fastest = preflight.measured, _fastest(preflight.links)
    found: dict[str, Any] = {}
    if measured is not None:
        found = {
            "device": measured.device,
            "gpus": measured.gpus or 0,
            "memory_bytes": measured.memory_bytes,
            "product_s": measured.product_s,
        }
    if fastest is not None:
        found |= {"neighbour": fastest.neighbour, "mb_per_s": fastest.mb_per_s}
    return found
