"""A driver moves what is typed and printed in shells once, and each shell has an end."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import scene
from trainers.driver.shells import Shells
from trainers.shells import BUFFER_BYTES, CHUNK_BYTES, FORGOTTEN_S, STDOUT, ShellAnswer, ShellTurn, as_answer


class Scene:
    """A stage with one shell, and a service that sends states."""

    def __init__(self, workers: int = 3) -> None:
        self.stage = Stage(workers)
        self.shells = Shells(self.stage.group_members, self.stage.attempt.spawn)
        self.stage.watch = self._react
        self.asked: list[tuple[int, dict[str, Any]]] = []
        self.known = state()
        self._calls = 0

    def _react(self, slot: int, message: dict[str, Any]) -> None:
        if message["type"] == "shell":
            self.asked.append((slot, message))

    async def exchange(self, *states: ShellTurn, order: tuple[int, int] | None = None) -> list[ShellAnswer]:
        self._calls += 1
        found = await self.shells.exchange(order or (1, self._calls), list(states))
        return [as_answer(one) for one in found]

    async def opened(self, **more: Any) -> str:
        """What the supervisor calls the shell, which it has opened."""
        self.known = state(**more)
        asking = asyncio.ensure_future(self.exchange(self.known))
        await self.stage.after(0.5)
        token = str(self.asked[-1][1]["token"])
        await self.shells.output(token, [])
        (answer,) = await asking
        assert answer.is_open
        self.known = replace(self.known, is_open=True)
        return token


def state(**more: Any) -> ShellTurn:
    known: dict[str, Any] = {
        "number": 1,
        "rank": 1,
        "command": (),
        "size": (24, 80),
        "term": "xterm",
        "inputs": (),
        "after": 0,
        "room": 1 << 18,
        "is_open": False,
    }
    return ShellTurn(**{**known, **more})


@scene
async def test_the_supervisor_of_the_rank_opens_it_once_whatever_is_repeated() -> None:
    at = Scene()
    token = await at.opened(command=("ls",))
    for _ in range(2):
        at.known = replace(at.known, inputs=((1, b"a"), (2, b"b")))
        asking = asyncio.ensure_future(at.exchange(at.known))
        await at.stage.after(0.1)
    ((slot, message),) = at.asked
    assert (slot, message["command"], message["size"]) == (1, ["ls"], (24, 80))
    news = await at.shells.input(token, 0, (24, 80))
    assert news == {"pieces": [(1, b"a"), (2, b"b")], "size": (24, 80), "is_over": False}
    later = asyncio.ensure_future(at.shells.input(token, 2, (24, 80)))
    (answer,) = await asking
    assert answer.taken == 2
    await at.exchange(replace(at.known, inputs=((3, b"c"),), size=(30, 90)))
    assert (await later)["pieces"] == [(3, b"c")]
    assert (await at.shells.input(token, 3, (24, 80)))["size"] == (30, 90)


@scene
async def test_output_is_kept_until_it_is_known_to_be_stored_and_stops_the_shell_when_there_is_much() -> None:
    at = Scene()
    token = await at.opened()
    chunk = bytes(CHUNK_BYTES)
    said = [await at.shells.output(token, [(STDOUT, chunk)]) for _ in range(1 + BUFFER_BYTES // CHUNK_BYTES)]
    assert said == [*["taken"] * (BUFFER_BYTES // CHUNK_BYTES), "full"]
    for _ in range(2):
        (answer,) = await at.exchange(replace(at.known, room=3 * CHUNK_BYTES + 1))
        assert [number for number, _, _ in answer.chunks] == [1, 2, 3], "the answer before may be lost"
    (answer,) = await at.exchange(replace(at.known, after=3))
    assert [number for number, _, _ in answer.chunks] == [4, 5, 6, 7, 8]
    assert await at.shells.output(token, [(STDOUT, b"more")]) == "taken"
    await at.shells.ended(token, "the shell has ended", 0)
    await at.shells.ended(token, "again", 1)
    (answer,) = await at.exchange(replace(at.known, after=3, room=CHUNK_BYTES))
    assert (answer.message, len(answer.chunks)) == (None, 1), "not before its last output"
    (answer,) = await at.exchange(replace(at.known, after=4))
    assert (answer.message, answer.exit_code, answer.chunks[-1][2]) == ("the shell has ended", 0, b"more")


@scene
async def test_a_shell_that_is_not_named_any_more_is_over() -> None:
    at = Scene()
    token = await at.opened()
    waiting = asyncio.ensure_future(at.shells.input(token, 0, (24, 80)))
    await at.stage.after(0.1)
    assert await at.exchange() == []
    assert (await waiting)["is_over"]
    assert await at.shells.output(token, [(STDOUT, b"x")]) == "over"
    assert (await at.shells.input("another", 0, None))["is_over"]


@scene
async def test_an_earlier_controller_changes_nothing() -> None:
    at = Scene()
    token = await at.opened()
    assert await at.exchange(order=(0, 99)) == []
    assert await at.shells.output(token, [(STDOUT, b"x")]) == "taken"
    (answer,) = await at.exchange(at.known, order=(2, 1))
    assert answer.chunks == ((1, STDOUT, b"x"),)


@scene
async def test_one_that_the_service_has_forgotten_ends_and_is_not_opened_again() -> None:
    at = Scene()
    token = await at.opened()
    await at.stage.after(FORGOTTEN_S - 5)
    assert await at.shells.output(token, []) == "taken"
    await at.stage.after(10)
    assert await at.shells.output(token, []) == "over"
    (answer,) = await at.exchange(at.known)
    assert "has not asked for it" in (answer.message or "")
    assert len(at.asked) == 1


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("no rank", "the job has no rank 7 now: its worker group has 3 ranks, from 0"),
        ("frozen", "does not answer"),
        ("lost", "its worker has ended, or was lost"),
        ("ended", "its worker has ended, or was lost"),
    ],
)
@scene
async def test_one_without_a_worker_ends_with_a_sentence(how: str, text: str) -> None:
    at = Scene()
    if how == "frozen":
        at.stage.frozen.add(1)
    wanted = state(rank=7) if how == "no rank" else state()
    asking = asyncio.ensure_future(at.exchange(wanted))
    await at.stage.after(2.0)
    if how == "lost":
        at.stage.kill(1)
    elif how == "ended":
        at.stage.group_members.ended.add(1)
    await at.stage.after(9.0)
    (answer,) = await asking
    assert text in (answer.message or "")


@pytest.mark.parametrize(
    "said",
    [
        None,
        [1, True, 0, [], None],
        [1, 1, 0, [], None, None],
        ["1", True, 0, [], None, None],
        [1, True, 0, [[1, 3, b"x"]], None, None],
        [1, True, 0, [[1, 1, b""]], None, None],
        [1, True, 0, [[1, 1, "x"]], None, None],
        [1, True, 0, [[1, 1, bytes(CHUNK_BYTES + 1)]], None, None],
        [1, True, 0, [[n, 1, bytes(CHUNK_BYTES)] for n in range(1, 50)], None, None],
        [1, True, 0, [], "ended", 300],
        [1, True, 0, [], "ended", True],
        [1, True, 0, [], 5, None],
    ],
)
def test_what_is_no_answer_is_refused(said: Any) -> None:
    with pytest.raises(ValueError, match=r"it is|its exit|it has"):
        as_answer(said)
