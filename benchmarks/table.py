"""What `make bench-elastic` measured beside what was to be reached (pure)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from rich.table import Table

Document = Mapping[str, Mapping[str, Any]]
Row = tuple[str, str, str, str, bool]


def rows(document: Mapping[str, Any]) -> Iterator[Row]:
    """Figure, ours, the peer's, target, and whether it was reached."""
    for name, ours, peer, target, is_reached in _FIGURES:
        try:
            yield name, _text(ours(document)), _text(peer(document)), target, bool(is_reached(document))
        except (KeyError, TypeError, ZeroDivisionError):
            yield name, "not measured", "", target, False


def table(document: Mapping[str, Any]) -> Table:
    """The same for people."""
    shown = Table("figure", "remora", "peer", "target", "verdict")
    for name, ours, peer, target, is_reached in rows(document):
        shown.add_row(name, ours, peer, target, "[green]reached[/]" if is_reached else "[red]missed[/]")
    return shown


def _text(value: Any) -> str:
    return "" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _at(*path: str) -> Callable[[Mapping[str, Any]], Any]:
    def look(document: Mapping[str, Any]) -> Any:
        value: Any = document
        for name in path:
            value = value[name]
        return value

    return look


def _none(document: Mapping[str, Any]) -> None:
    del document


def _losses_kept(d: Mapping[str, Any]) -> bool:
    notice = d["notice"]
    return not any(notice[name] for name in ("repeated_steps", "samples_lost", "samples_doubled"))


#: What is measured, its figure, that of its peer, the target in words, and whether it is reached.
_Figure: TypeAlias = tuple[str, Callable[..., Any], Callable[..., Any], str, Callable[..., Any]]


def _of_walls(kind: str, how: str) -> tuple[_Figure, ...]:
    """What it costs that a command is kept apart in one way."""

    def cost_ms(d: Mapping[str, Any], way: str) -> float:
        of_way = d["walls"]["start_ms"][way]
        return float(of_way[kind] - of_way["none"])

    return (
        (
            f"milliseconds to the first line of a command that was started {how} (peer: without)",
            _at("walls", "start_ms", "started", kind),
            _at("walls", "start_ms", "started", "none"),
            "at most 50 more",
            lambda d: cost_ms(d, "started") <= 50,
        ),
        (
            f"the same of one that was forked {how}",
            _at("walls", "start_ms", "forked", kind),
            _at("walls", "start_ms", "forked", "none"),
            "at most 50 more",
            lambda d: cost_ms(d, "forked") <= 50,
        ),
        (
            f"step time {how}, beside the same without",
            _at("walls", "step_ratio", kind),
            _none,
            "at most 1.02",
            lambda d: d["walls"]["step_ratio"][kind] <= 1.02,
        ),
        (
            f"SIGKILL of one of three nodes, {how}: seconds to the next step (peer: without)",
            _at("walls", "recovery_s", kind),
            _at("walls", "recovery_s", "none"),
            "under 1",
            lambda d: d["walls"]["recovery_s"][kind] < 1,
        ),
    )


_FIGURES: tuple[_Figure, ...] = (
    (
        "SIGKILL of one of three nodes: seconds to the survivors' next step",
        _at("silent_death", "remora_s"),
        _at("silent_death", "stock_s"),
        "10 times faster, under 0.5",
        lambda d: d["silent_death"]["remora_s"] < min(0.5, d["silent_death"]["stock_s"] / 10),
    ),
    (
        "steps repeated after it",
        _at("silent_death", "remora_repeated_steps"),
        _at("silent_death", "stock_repeated_steps"),
        "at most 1",
        lambda d: d["silent_death"]["remora_repeated_steps"] <= 1,
    ),
    (
        "share of a core that Ray's GCS takes in the 10 s after it",
        _at("silent_death", "remora_gcs_core_share"),
        _none,
        "under 0.2",
        lambda d: d["silent_death"]["remora_gcs_core_share"] < 0.2,
    ),
    (
        "notice of 20 s: steps repeated",
        _at("notice", "repeated_steps"),
        _at("notice", "stock_repeated_steps"),
        "0",
        lambda d: d["notice"]["repeated_steps"] == 0,
    ),
    (
        "notice of 20 s: samples lost or doubled",
        lambda d: d["notice"]["samples_lost"] + d["notice"]["samples_doubled"],
        _none,
        "0",
        _losses_kept,
    ),
    (
        "2 to 3 workers: seconds that the two pause",
        _at("grow", "remora_pause_s"),
        _at("grow", "stock_pause_s"),
        "under 0.3",
        lambda d: d["grow"]["remora_pause_s"] < 0.3,
    ),
    (
        "step time of digits, beside DDP under torchrun",
        _at("steady_ratio", "digits"),
        _none,
        "at most 1.01",
        lambda d: d["steady_ratio"]["digits"] <= 1.01,
    ),
    (
        "step time of the GPT, beside DDP under torchrun",
        _at("steady_ratio", "gpt"),
        _none,
        "at most 1.01",
        lambda d: d["steady_ratio"]["gpt"] <= 1.01,
    ),
    (
        "step time in bitwise mode, beside sample-exact",
        _at("bitwise_ratio"),
        _none,
        "at most 1.25",
        lambda d: d["bitwise_ratio"] <= 1.25,
    ),
    (
        "share of its steps that a comparison of the workers' weights takes, digits",
        _at("agreement_share", "digits"),
        _none,
        "at most 0.005",
        lambda d: max(d["agreement_share"].values()) <= 0.005,
    ),
    (
        "step time of the GPT with a shard computed twice every 500 steps, beside steps without",
        _at("verify_ratio", "gpt", "500"),
        _none,
        "at most 1.01",
        lambda d: d["verify_ratio"]["gpt"]["500"] <= 1.01,
    ),
    (
        "seconds that one of 1,024 workers plans what travels of a sharded model (peer: torch.distributed.checkpoint)",
        _at("reshard_planning", "1024", "remora_s"),
        _at("reshard_planning", "1024", "dcp_s"),
        "under 2, below the peer",
        lambda d: d["reshard_planning"]["1024"]["remora_s"] < min(2, d["reshard_planning"]["1024"]["dcp_s"]),
    ),
    (
        "seconds that one of 1,024 workers plans what travels at a resume (peer: torch.distributed.checkpoint)",
        _at("resume_planning", "1024", "remora_s"),
        _at("resume_planning", "1024", "dcp_s"),
        "under 2",
        lambda d: d["resume_planning"]["1024"]["remora_s"] < 2,
    ),
    (
        "how often a checkpoint leaves the storage for 8 ranks of a node (peer: torch.distributed.checkpoint)",
        _at("resume_bytes", "8", "remora_times"),
        _at("resume_bytes", "8", "dcp_times"),
        "once",
        lambda d: d["resume_bytes"]["8"]["remora_times"] <= 1.01,
    ),
    (
        "seconds until an FSDP2 script has its state again from its node (peer: from the storage)",
        _at("resume_near", "fsdp2", "node_s"),
        _at("resume_near", "fsdp2", "storage_s"),
        "nothing read from the storage",
        lambda d: max(one["node_times"] for one in d["resume_near"].values()) == 0,
    ),
    (
        "how often a sharded state leaves the storage for 4 ranks on two nodes (peer: torch.distributed.checkpoint)",
        _at("resume_shards", "4", "remora_times"),
        _at("resume_shards", "4", "dcp_times"),
        "once",
        lambda d: d["resume_shards"]["4"]["remora_times"] <= 1.02,
    ),
    (
        "threads of a worker after 30 regroupings (peer: before them)",
        _at("regroupings", "threads", "after"),
        _at("regroupings", "threads", "before"),
        "at most 12 more",
        lambda d: d["regroupings"]["threads"]["after"] <= d["regroupings"]["threads"]["before"] + 12,
    ),
    (
        "MiB of memory of a worker after 30 regroupings (peer: before them)",
        _at("regroupings", "memory_mib", "after"),
        _at("regroupings", "memory_mib", "before"),
        "at most 15 more",
        lambda d: d["regroupings"]["memory_mib"]["after"] <= d["regroupings"]["memory_mib"]["before"] + 15,
    ),
    (
        "seconds that a checkpoint of 200 MB stalls the loop (peer: async_save)",
        _at("stall", "remora_s"),
        _at("stall", "async_save_s"),
        "2 % of a step, below the peer",
        lambda d: d["stall"]["remora_s"] <= min(0.02 * d["stall"]["step_s"], d["stall"]["async_save_s"]),
    ),
    (
        "step with a checkpoint of 200 MB of a sharded model, beside one without (peer: torch.distributed.checkpoint)",
        _at("sharded_stall", "remora"),
        _at("sharded_stall", "dcp_save"),
        "at most 1.05, below the peer",
        lambda d: d["sharded_stall"]["remora"] <= min(1.05, d["sharded_stall"]["dcp_save"]),
    ),
    (
        "seconds from submit to the first step on a warm cluster",
        _at("submit_to_first_step", "remora_s"),
        _at("submit_to_first_step", "stock_s"),
        "3 times faster, under 2",
        lambda d: d["submit_to_first_step"]["remora_s"] < min(2, d["submit_to_first_step"]["stock_s"] / 3),
    ),
    *_of_walls("users", "as a user of its own"),
    *_of_walls("namespaces", "in namespaces of its own"),
)
