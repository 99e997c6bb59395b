"""Where the seconds of a change in place went is in its event, as far as scripts say so (in virtual time)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import scene
from trainers.driver.durations import ScriptDurations

SPOKEN = {"connect_s": 0.01, "form_s": 0.02, "move_s": 0.03}


@scene
async def test_the_parts_of_a_pause_add_up() -> None:
    stage = Stage(3)
    stage.slow = {2: 0.5}
    stage.kill(1)
    await stage.settled()
    (event,) = stage.events("worker_group.regrouped")
    parts = event["parts"]
    assert parts.keys() == {"park_s", "prepare_s", "join_s"}, "these scripts say nothing themselves"
    assert parts["park_s"] >= 0.5, "one script was slow to park"
    assert sum(parts.values()) == pytest.approx(event["pause_s"], abs=0.003)


@scene
async def test_the_parts_of_the_slowest_script_are_reported() -> None:
    stage = Stage(2)
    stage.say(0, "parted", generation=1, step=10, why="a peer was lost", noticed_s=0.004)
    stage.say(1, "parted", generation=1, step=10, why="a peer was lost", noticed_s=7.0)
    stage.unheard = {(0, "regroup"), (1, "regroup")}
    await stage.after(0.2)
    stage.say(0, "joined", generation=2, step=10, connect_s=0.01, form_s=0.5, move_s=0.03)
    stage.say(1, "joined", generation=2, step=10, connect_s=0.4, form_s=0.02, move_s=0.03)
    (event,) = stage.events("worker_group.regrouped")
    spoken = {name: event["parts"][name] for name in ("noticed_s", "connect_s", "form_s", "move_s")}
    assert spoken == {"noticed_s": 0.004, "connect_s": 0.01, "form_s": 0.5, "move_s": 0.03}


@scene
async def test_a_worker_that_joins_is_reported_once_with_what_its_start_took() -> None:
    stage = Stage(2)
    slot = stage.join(is_ready=False)
    await stage.after(1.0)
    stage.in_place.note_start(slot, {"type": "started", "pid": 1, "is_warm": True})
    await stage.after(2.0)
    stage.say(slot, "parted", generation=1, step=-1, why="joining")
    stage.say(slot, "parted", generation=1, step=-1, why="joining")
    (event,) = stage.events("worker.ready")
    assert event == {
        "address": "10.0.0.2", "actor_s": 0.0, "command_s": pytest.approx(1.0, abs=0.01),
        "load_s": pytest.approx(2.0, abs=0.01), "is_warm": True,
    }  # fmt: skip


@pytest.mark.parametrize("value", [None, True, "0.1", -1.0, float("nan"), float("inf"), 1e9, [], {}])
def test_what_is_no_duration_is_left_out(value: Any) -> None:
    durations = ScriptDurations()
    durations.park({"noticed_s": value})
    durations.join({"connect_s": value, "form_s": 1})
    assert durations.rounded() == {"form_s": 1.0}


def test_what_scripts_said_about_an_earlier_try_does_not_count() -> None:
    durations = ScriptDurations()
    durations.park({"noticed_s": 0.25})
    durations.join({"connect_s": 9.0, "form_s": 9.0, "move_s": 9.0})
    durations.begin_try()
    durations.join(SPOKEN)
    assert durations.rounded() == {"noticed_s": 0.25, **SPOKEN}
