"""The life line of a job, from its events: whole, without overlaps, and with a lane for each stay of a worker."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.page_scripts import WEB, Script, page_script

A, B, C = "10.0.0.1", "10.0.0.2", "10.0.0.3"


@pytest.fixture(scope="module")
def script() -> Iterator[Script]:
    with page_script("life_line.js") as script:
        yield script


def event(at: float, kind: str, **data: Any) -> dict[str, Any]:
    return {"at": at, "kind": kind, "message": f"{kind}.", "data": data}


def spans(lane: dict[str, Any]) -> list[tuple[str, float, float]]:
    return [(span["phase"], span["from"], span["to"]) for span in lane["spans"]]


BEGIN = [
    event(0, "job.queued"),
    event(10, "attempt.created"),
    event(12, "worker_group.started", addresses=[A, B]),
    event(15, "attempt.started"),
]


def test_a_job_waits_starts_and_trains_until_now(script: Script) -> None:
    line = script.call("lifeLine", BEGIN, 40)
    assert [(span["phase"], span["from"], span["to"]) for span in line["job"]] == [
        ("waiting", 0, 10),
        ("starting", 10, 15),
        ("training", 15, 40),
    ]
    assert [(lane["address"], lane["rank"]) for lane in line["lanes"]] == [(A, 0), (B, 1)]
    assert spans(line["lanes"][1]) == [("starting", 12, 15), ("training", 15, 40)]
    assert line["workers"] == [{"at": 15, "count": 2}]


def test_a_lost_worker_ends_its_lane_and_the_others_go_on_in_place(script: Script) -> None:
    lost = [
        event(20, "node.lost", ranks=[0]),
        event(21, "worker_group.regrouped", addresses=[B], world_size=1, cause="loss", pause_s=1.0),
        event(30, "worker_group.regrouped", addresses=[B, C], world_size=2, cause="grow", pause_s=0.25),
        event(35, "job.succeeded"),
    ]
    line = script.call("lifeLine", [*BEGIN, *lost], 99)
    assert [spans(lane) for lane in line["lanes"]] == [
        [("starting", 12, 15), ("training", 15, 20)],
        [("starting", 12, 15), ("training", 15, 20), ("regrouping", 20, 21), ("training", 21, 35)],
        [("training", 30, 35)],
    ]
    assert [lane["rank"] for lane in line["lanes"]] == [0, 0, 1]
    assert line["to"] == 35
    assert [(mark["kind"], mark["text"]) for mark in line["marks"]] == [
        ("loss", "node.lost."),
        ("change", "loss: 1 workers, 1.00 s"),
        ("change", "grow: 2 workers, 0.25 s"),
    ]


def test_steps_that_a_group_in_place_does_again_are_no_training(script: Script) -> None:
    lost = [
        event(20, "node.lost", ranks=[1]),
        event(21, "worker_group.regrouped", addresses=[A], world_size=1, cause="loss", pause_s=1.0),
        event(26, "training.resumed", step=61, repeated_steps=60, recomputing_s=4.0, pause_s=6.0),
        event(35, "job.succeeded"),
    ]
    line = script.call("lifeLine", [*BEGIN, *lost], 99)
    assert spans(line["lanes"][0])[2:] == [
        ("regrouping", 20, 21),
        ("training", 21, 22),
        ("recomputing", 22, 26),
        ("training", 26, 35),
    ]


def test_steps_that_are_done_again_are_no_training(script: Script) -> None:
    again = [
        event(20, "node.lost", ranks=[0]),
        event(22, "worker_group.started", addresses=[B, C]),
        event(25, "attempt.started"),
        event(28, "training.resumed", pause_s=8.0),
    ]
    line = script.call("lifeLine", [*BEGIN, *again], 30)
    assert spans(line["lanes"][-1]) == [("starting", 22, 25), ("recomputing", 25, 28), ("training", 28, 30)]


def test_workers_start_until_their_first_step(script: Script) -> None:
    events = [
        event(18, "training.began"),
        event(20, "node.lost", ranks=[0]),
        event(22, "worker_group.started", addresses=[B, C]),
        event(25, "attempt.started"),
        event(30, "training.resumed", pause_s=10.0, repeated_steps=3, recomputing_s=2.0),
    ]
    line = script.call("lifeLine", [*BEGIN, *events], 40)
    assert spans(line["lanes"][1]) == [("starting", 12, 18), ("training", 18, 20), ("regrouping", 20, 22)]
    assert spans(line["lanes"][-1]) == [("starting", 22, 28), ("recomputing", 28, 30), ("training", 30, 40)]
    assert loss_of(line)["recomputing_s"] == 2


def loss_of(line: dict[str, Any]) -> dict[str, Any]:
    (loss,) = line["losses"]
    return {name: loss[name] for name in ("isOver", "noticed_s", "regrouping_s", "recomputing_s", "steps")}


def test_a_loss_counts_from_the_last_step_before_it_to_the_first_new_one(script: Script) -> None:
    again = [
        event(20, "node.lost", ranks=[0]),
        event(20, "attempt.regrouping"),
        event(22, "worker_group.started", addresses=[B, C]),
        event(25, "attempt.started"),
    ]
    won = event(28, "training.resumed", pause_s=9.0, repeated_steps=7)
    open_loss = script.call("lifeLine", [*BEGIN, *again], 27)
    assert loss_of(open_loss) == {
        "isOver": False, "noticed_s": 0, "regrouping_s": 5, "recomputing_s": 2, "steps": None,
    }  # fmt: skip
    line = script.call("lifeLine", [*BEGIN, *again, won], 40)
    assert loss_of(line) == {
        "isOver": True, "noticed_s": 1, "regrouping_s": 5, "recomputing_s": 3, "steps": 7,
    }  # fmt: skip
    assert (line["losses"][0]["from"], line["losses"][0]["to"], line["losses"][0]["total_s"]) == (19, 28, 9)
    assert [mark.get("loss") for mark in line["marks"]] == [0, None]


def test_a_preemption_with_a_notice_is_a_loss_that_repeats_no_step(script: Script) -> None:
    in_place = [
        event(20, "worker_group.drain"),
        event(22, "worker_group.regrouped", addresses=[B], world_size=1, cause="drain", pause_s=0.5),
    ]
    line = script.call("lifeLine", [*BEGIN, *in_place], 40)
    assert loss_of(line) == {
        "isOver": True, "noticed_s": 0, "regrouping_s": 0.5, "recomputing_s": 0, "steps": 0,
    }  # fmt: skip
    assert line["losses"][0]["cause"] == "worker_group.drain."
    from_checkpoint = [
        event(20, "worker_group.drain"),
        event(22, "attempt.regrouping"),
        event(26, "worker_group.started", addresses=[B, C]),
        event(27, "attempt.started"),
    ]
    line = script.call("lifeLine", [*BEGIN, *from_checkpoint], 40)
    assert loss_of(line)["regrouping_s"] == 5


def test_losses_before_the_next_new_step_are_one(script: Script) -> None:
    events = [
        event(20, "node.lost", ranks=[0]),
        event(21, "node.lost", ranks=[1]),
        event(25, "training.resumed", pause_s=5.5, repeated_steps=2),
    ]
    assert loss_of(script.call("lifeLine", [*BEGIN, *events], 40))["noticed_s"] == pytest.approx(0.5)


def test_an_attempt_that_ends_is_a_loss_until_the_next_one_trains(script: Script) -> None:
    ended = event(20, "attempt.ended", end_reason="node_lost")
    again = [
        event(21, "attempt.created"),
        event(22, "worker_group.started", addresses=[C]),
        event(24, "attempt.started"),
        event(26, "training.began", repeats=True),
    ]
    assert loss_of(script.call("lifeLine", [*BEGIN, ended, *again], 40))["regrouping_s"] == 6
    failed = script.call("lifeLine", [*BEGIN, ended, event(20, "job.failed")], 40)
    assert (failed["losses"], failed["marks"]) == ([], [])
    paused = event(20, "attempt.ended", end_reason="paused")
    assert script.call("lifeLine", [*BEGIN, paused, event(20, "job.paused")], 40)["losses"] == []


def test_a_hang_after_which_all_start_again_is_a_loss_from_the_last_step_on(script: Script) -> None:
    hung = [
        event(50, "worker_group.hung", quiet_s=30.0),
        event(50, "attempt.regrouping"),
        event(51, "worker_group.started", addresses=[A, B]),
        event(53, "attempt.started"),
    ]
    won = event(56, "training.resumed", pause_s=36.5, repeated_steps=4)
    waiting = script.call("lifeLine", [*BEGIN, *hung], 54)
    assert loss_of(waiting) == {
        "isOver": False, "noticed_s": 30, "regrouping_s": 3, "recomputing_s": 1, "steps": None,
    }  # fmt: skip
    line = script.call("lifeLine", [*BEGIN, *hung, won], 60)
    assert loss_of(line) == {
        "isOver": True, "noticed_s": 30.5, "regrouping_s": 3, "recomputing_s": 3, "steps": 4,
    }  # fmt: skip
    assert [(mark["kind"], mark["text"], mark.get("loss")) for mark in line["marks"]] == [
        ("loss", "worker_group.hung.", 0),
        ("change", "training.resumed.", None),
    ]
    lost = event(19, "node.lost", ranks=[1])
    both = script.call("lifeLine", [*BEGIN, lost, *hung], 54)["losses"]
    assert [(loss["at"], loss["from"]) for loss in both] == [(19, 19)], "no step was new between the two"
    # The driver may say so after it has begun to regroup.
    assert loss_of(script.call("lifeLine", [*BEGIN, hung[1], hung[0], *hung[2:], won], 60)) == loss_of(line)


def test_a_hang_that_the_others_park_for_is_one_loss_from_the_last_step_on(script: Script) -> None:
    parked = [
        event(50, "worker_group.hung", quiet_s=30.0),
        event(51, "attempt.regrouping"),
        event(56, "worker_group.regrouped", cause="loss", world_size=1, pause_s=6.0, addresses=[A]),
        event(57, "training.resumed", pause_s=37.0, repeated_steps=0),
    ]
    line = script.call("lifeLine", [*BEGIN, *parked], 60)
    assert [(loss["from"], loss["to"], loss["steps"]) for loss in line["losses"]] == [(20, 57, 0)]
    assert [mark["kind"] for mark in line["marks"]] == ["loss", "change", "change"]
    assert [(lane["address"], lane["spans"][-1]["to"]) for lane in line["lanes"]] == [(A, 60), (B, 56)]


def test_a_hang_that_ends_the_attempt_is_the_same_loss(script: Script) -> None:
    ended = [event(50, "worker_group.hung", quiet_s=30.0), event(51, "attempt.ended", end_reason="hang")]
    line = script.call("lifeLine", [*BEGIN, *ended, event(52, "attempt.created")], 60)
    assert [(loss["from"], loss["isOver"]) for loss in line["losses"]] == [(20, False)]
    failed = script.call("lifeLine", [*BEGIN, *ended, event(51, "job.failed")], 60)
    assert [(loss["from"], loss["to"]) for loss in failed["losses"]] == [(20, 51)]


@pytest.mark.parametrize("kind", ["checkpoint.refused", "checkpoint.abandoned", "checkpoint.incomplete"])
def test_a_checkpoint_that_did_not_come_to_be_has_a_mark(script: Script, kind: str) -> None:
    line = script.call("lifeLine", [*BEGIN, event(20, kind, step=3)], 30)
    assert [(mark["at"], mark["kind"], mark["text"]) for mark in line["marks"]] == [
        (20, "notice", f"{kind}.")
    ]
    assert line["losses"] == []


def test_a_collective_that_failed_is_the_cause_of_the_loss_that_follows(script: Script) -> None:
    events = [
        event(20, "worker.collectives_failed", rank=1),
        event(22, "worker_group.regrouped", addresses=[A], world_size=1, cause="loss", pause_s=1.0),
    ]
    line = script.call("lifeLine", [*BEGIN, *events], 30)
    assert (line["losses"][0]["cause"], line["losses"][0]["total_s"]) == ("worker.collectives_failed.", 1)
    assert ("loss", "worker.collectives_failed.") in [(mark["kind"], mark["text"]) for mark in line["marks"]]


def test_workers_of_one_node_have_lanes_of_their_own(script: Script) -> None:
    line = script.call(
        "lifeLine",
        [
            event(0, "worker_group.started", addresses=[A, A, B]),
            event(1, "attempt.started"),
            event(2, "worker_group.regrouped", addresses=[A, B], world_size=2, cause="resize"),
        ],
        5,
    )
    assert [lane["address"] for lane in line["lanes"]] == [A, A, B]
    assert [lane["spans"][-1]["to"] for lane in line["lanes"]] == [5, 2, 5]


def test_stalls_for_checkpoints_are_a_phase_of_the_job_and_of_lanes_that_did_steps(script: Script) -> None:
    lost = event(20, "node.lost", ranks=[1])
    line = script.call("lifeLine", [*BEGIN, lost], 30)
    stalls = [{"from": 12.5, "to": 16}, {"from": 17, "to": 18.5}, {"from": 19, "to": 22}]
    cut = script.call("withStalls", line, stalls)
    of_training = [
        ("checkpoint_stall", 15, 16),
        ("training", 16, 17),
        ("checkpoint_stall", 17, 18.5),
        ("training", 18.5, 19),
        ("checkpoint_stall", 19, 20),
    ]
    assert spans({"spans": cut["job"]}) == [
        ("waiting", 0, 10),
        ("starting", 10, 15),
        *of_training,
        ("regrouping", 20, 30),
    ]
    assert spans(cut["lanes"][0]) == [("starting", 12, 15), *of_training, ("regrouping", 20, 30)]
    assert spans(cut["lanes"][1]) == [("starting", 12, 15), *of_training]
    assert script.call("withStalls", line, []) == line


def test_every_kind_that_changes_the_line_is_asked_for_however_many_checkpoints_follow() -> None:
    text = (WEB / "life_line.js").read_text()
    switched = {
        kind for line in re.findall(r"case (.+?):", text) for kind in re.findall(r'"([a-z_.]+)"', f"{line}")
    }
    assert "attempt.regrouping" in switched
    with page_script("life_line.js") as script:
        changes = script.value("CHANGES")
    assert switched - set(changes) == {"checkpoint.committed"}
    assert len(changes) == len(set(changes)) <= 50, "the API takes no more"


ADDRESSES = st.lists(st.sampled_from([A, B, C]), max_size=4)
EVENTS = st.one_of(
    st.sampled_from(
        [
            *("job.queued", "job.paused", "attempt.created", "environment.preparing", "environment.ready"),
            *("attempt.started", "job.running", "training.resumed", "attempt.regrouping"),
            *("checkpoint.committed", "attempt.ended", "job.cancelled", "a.kind.of.later"),
            *("worker.collectives_failed", "checkpoint.refused"),
        ]
    ).map(lambda kind: (kind, {})),
    ADDRESSES.map(lambda found: ("worker_group.started", {"addresses": found})),
    ADDRESSES.map(
        lambda found: (
            "worker_group.regrouped",
            {"addresses": found, "world_size": len(found), "cause": "loss", "pause_s": 0.5},
        )
    ),
    st.lists(st.integers(0, 5), max_size=3).map(lambda ranks: ("node.lost", {"ranks": ranks})),
    st.just(("worker_group.started", {})),
    st.just(("worker_group.hung", {"quiet_s": 3.0})),
)


@given(found=st.lists(st.tuples(EVENTS, st.integers(-2, 5)), max_size=30))
@settings(max_examples=150)
def test_whatever_happens_spans_follow_one_another_and_end(script: Script, found: list[Any]) -> None:
    at, events = 0, []
    for (kind, data), later in found:
        # Records of a driver may be stored later than others that happened after them.
        at += later
        events.append(event(at, kind, **data))
    line = script.call("lifeLine", events, at + 10)
    for lane in [{"spans": line["job"]}, *line["lanes"]]:
        for phase, begin, end in spans(lane):
            assert line["from"] <= begin <= end <= line["to"], phase
        for (before, _, end), (after, begin, _) in pairwise(spans(lane)):
            assert end <= begin
            assert before != after or end < begin, "one span for one phase"
    for loss in line["losses"]:
        shares = [loss[name] for name in ("noticed_s", "regrouping_s", "recomputing_s")]
        assert min(shares) >= 0
        assert sum(shares) == pytest.approx(loss["total_s"])
    for one, other in pairwise(line["workers"]):
        assert one["at"] <= other["at"]
        assert one["count"] != other["count"]


def test_a_life_line_takes_time_linear_in_its_events(script: Script) -> None:
    """Ten times as many regroupings make ten times as many lanes and marks, and no more."""

    def sizes(count: int) -> tuple[int, int]:
        changes = [
            event(20 + n, "worker_group.regrouped", addresses=[f"10.1.{n // 250}.{n % 250}"], world_size=1)
            for n in range(count)
        ]
        line = script.call("lifeLine", [*BEGIN, *changes], 10_000)
        return len(line["lanes"]), len(line["marks"])

    assert sizes(10) == (12, 10)
    assert sizes(1000) == (1002, 1000)


def test_the_parts_of_losses_take_time_in_proportion_to_the_life_of_a_job(script: Script) -> None:
    def reads(count: int) -> int:
        phases = [
            {"phase": phase, "from": 10 * number + begin, "to": 10 * number + end}
            for number in range(count)
            for phase, begin, end in (("training", 0, 7), ("regrouping", 7, 9), ("recomputing", 9, 10))
        ]
        losses = [
            {"at": 10 * number + 7, "from": 10 * number + 6, "to": 10 * number + 10, "cause": "", "steps": 1}
            for number in range(count)
        ]
        (found,) = {
            (one["noticed_s"], one["regrouping_s"], one["recomputing_s"])
            for one in script.call("withParts", losses, phases, 10 * count)
        }
        assert found == (1, 2, 1)
        return script.reads("withParts", losses, phases, 10 * count)

    assert reads(1000) < 20 * 1000
    assert reads(4000) < 5 * reads(1000)
