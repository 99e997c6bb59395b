"""Which parts of the embedded service are started, ended and given up."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.embedded.upkeep import (
    HEAD_TIMEOUT_S,
    LONGEST_PAUSE_S,
    STEADY_S,
    TRIES,
    Action,
    End,
    GiveUp,
    Part,
    PartView,
    Start,
    decide,
    observe,
    pause_s,
    started,
)

NOW = 1000.0
WELL = PartView(is_alive=True, is_ready=True, was_ready=True, started_at=NOW - 100)
ENDED = PartView(was_ready=True, started_at=NOW - 100, ended_at=NOW - 1, failures=1)


def decided(**parts: PartView) -> list[Action]:
    """What is done; parts that are not named are well, and there is an emulator only where one is named."""
    views = {part: parts.get(part.name.lower(), WELL) for part in Part}
    if "emulator" not in parts:
        del views[Part.EMULATOR]
    return decide(views, NOW)


def test_a_further_cluster_has_a_head_and_a_controller_and_no_api() -> None:
    new = {Part.HEAD: PartView(), Part.CONTROLLER: PartView()}
    assert decide(new, NOW) == [Start(Part.HEAD)]
    assert decide({**new, Part.HEAD: WELL}, NOW) == [Start(Part.CONTROLLER)]
    assert decide({Part.HEAD: ENDED, Part.CONTROLLER: WELL}, NOW) == [End(Part.CONTROLLER), Start(Part.HEAD)]


def test_at_first_the_head_and_the_api_start_together_and_the_controller_waits_for_the_head() -> None:
    new = PartView()
    assert decided(head=new, api=new, controller=new) == [Start(Part.HEAD), Start(Part.API)]
    on_its_way = PartView(is_alive=True, started_at=NOW)
    assert decided(head=on_its_way, controller=new) == []
    assert decided(controller=new) == [Start(Part.CONTROLLER)]


def test_when_all_is_well_nothing_is_done() -> None:
    assert decided() == []


def test_what_ended_is_started_again_after_its_pause() -> None:
    assert decided(api=ENDED) == [Start(Part.API)]
    assert decided(controller=ENDED) == [Start(Part.CONTROLLER)]
    just_now = PartView(was_ready=True, started_at=NOW - 1, ended_at=NOW, failures=1)
    assert decided(api=just_now, controller=just_now) == []


def test_a_dead_head_takes_the_controller_with_it() -> None:
    assert decided(head=ENDED) == [End(Part.CONTROLLER), Start(Part.HEAD)]
    assert decided(head=ENDED, controller=ENDED) == [Start(Part.HEAD)]


def test_a_head_that_cannot_be_reached_is_ended() -> None:
    silent = PartView(is_alive=True, started_at=NOW - HEAD_TIMEOUT_S)
    assert decided(head=silent, controller=WELL) == []
    silent = PartView(is_alive=True, started_at=NOW - HEAD_TIMEOUT_S - 1)
    assert decided(head=silent, controller=WELL) == [End(Part.HEAD)]


def test_an_emulator_stands_between_the_head_and_the_controller() -> None:
    new, on_its_way = PartView(), PartView(is_alive=True, started_at=NOW)
    assert decided(emulator=WELL) == []
    assert decided(head=on_its_way, emulator=new, controller=new) == []
    assert decided(emulator=new, controller=new) == [Start(Part.EMULATOR)]
    assert decided(emulator=on_its_way, controller=new) == []
    assert decided(emulator=WELL, controller=new) == [Start(Part.CONTROLLER)]


def test_a_dead_head_takes_the_emulator_with_it_and_a_dead_emulator_the_controller() -> None:
    assert decided(head=ENDED, emulator=WELL) == [
        End(Part.CONTROLLER),
        End(Part.EMULATOR),
        Start(Part.HEAD),
    ]
    # Tokens that it gave and machines that it made are not known to the next one.
    assert decided(emulator=ENDED) == [End(Part.CONTROLLER), Start(Part.EMULATOR)]
    assert decided(emulator=ENDED, controller=ENDED) == [Start(Part.EMULATOR)]


def test_what_never_worked_is_given_up_and_what_once_worked_never() -> None:
    assert decided(api=PartView(started_at=1.0, ended_at=1.0, failures=TRIES)) == [GiveUp(Part.API)]
    assert decided(api=PartView(was_ready=True, started_at=1.0, ended_at=1.0, failures=99)) == [
        Start(Part.API)
    ]


def seen(view: PartView, now: float, **what: Any) -> PartView:
    return observe(view, now=now, **{"is_alive": True, "is_ready": True, **what})


def test_ends_in_a_row_are_counted_and_a_steady_run_forgives_them() -> None:
    view = seen(started(PartView(), 0.0), 1.0)
    for end in range(1, 4):
        view = seen(started(view, 10.0 * end), 10.0 * end + 1, is_alive=False, is_ready=False)
        assert (view.is_alive, view.is_ready, view.failures) == (False, False, end)
        assert seen(view, 99.0, is_alive=False) == view, "an end is counted once"
    view = seen(started(view, 100.0), 100.0 + STEADY_S, is_alive=False)
    assert view.failures == 1
    assert view.was_ready


@given(st.integers(0, 10_000))
def test_pauses_grow_and_are_bounded(failures: int) -> None:
    assert 0 < pause_s(failures) <= pause_s(failures + 1) <= LONGEST_PAUSE_S
