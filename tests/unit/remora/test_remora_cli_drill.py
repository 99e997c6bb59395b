"""`remora drill` as its users see it: what it cost, and the exit code."""

from __future__ import annotations

import json
from typing import Any

import pytest

from remora.cli.exits import ExitCode
from remora.views import Drill
from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService

DRILL: dict[str, Any] = {"id": "drill_1", "node_ids": ["node_1"], "notice_s": 30.0, "requested_at": 1.0}
COST: dict[str, Any] = {
    "job_id": "job_1",
    "name": "digits",
    "workers_before": 3,
    "workers_least": 2,
    "workers": 3,
    "repeated_steps": 4,
    "next_step_s": 0.25,
    "pause_s": 6.0,
    "full_after_s": 20.0,
}


def drill(state: str, **fields: Any) -> Drill:
    return Drill.model_validate({**DRILL, "state": state, **fields})


def test_a_drill_is_watched_to_its_end_and_its_cost_printed(
    cli: Cli, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remora.cli.drill.LOOK_S", 0.0)
    service.drills = [
        drill("requested"),
        drill("struck", struck_at=2.0),
        drill("struck", struck_at=2.0, taken_at=32.0),
        drill("ended", struck_at=2.0, taken_at=32.0, ended_at=52.0, jobs=[COST]),
    ]
    assert cli("drill", "--node", "node_1") == ExitCode.OK
    header, row = cli.out.splitlines()
    assert header.split("  ")[0] == "JOB"
    assert " ".join(row.split()) == "job_1 digits 4 after 0.2 s 6.0 s 3 -> 2 -> 3 after 20.0 s"
    assert cli.err.splitlines() == [
        "Waiting for the controller to take node_1 ...",
        "node_1 will be gone 30 s after the notice ...",
        "node_1 gone; waiting until every job has its workers back ...",
    ]
    assert json.loads(service.requests[0].body) == {"notice_s": 30.0}


def test_a_silent_drill_of_a_pool_and_what_it_may_answer(
    cli: Cli, service: FakeService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remora.cli.drill.LOOK_S", 0.0)
    service.drills = [
        drill("struck", notice_s=None, struck_at=2.0),
        drill("struck", notice_s=None, struck_at=2.0, taken_at=2.0),
        drill("ended", notice_s=None, ended_at=52.0),
    ]
    assert cli("drill", "--pool", "gpu", "--silent") == ExitCode.OK
    assert cli.err.splitlines() == [
        "Taking node_1 ...",
        "node_1 gone; waiting until every job has its workers back ...",
        "No job lost a worker.",
    ]

    service.drills = [drill("ended", ended_at=52.0)]
    assert cli("drill", "--pool", "a/b", "--silent", "--json") == ExitCode.OK
    assert (cli.json["id"], cli.json["jobs"]) == ("drill_1", [])
    assert service.requests[-1].path in ("/v1/pools/a/b/drill", "/v1/pools/a%2Fb/drill")
    assert json.loads(service.requests[-1].body) == {"silent": True}

    service.drills = [drill("requested")]
    assert cli("drill", "--node", "node_1", "--detach") == ExitCode.OK
    assert cli.out == "drill_1\n"

    service.drills = [drill("refused", ended_at=2.0, message="the node is not alive")]
    assert cli("drill", "--node", "node_1") == ExitCode.ERROR
    assert (cli.out, cli.err) == ("", "remora: the node is not alive\n")

    service.drills = [drill("ended", ended_at=52.0)]
    assert cli("drill", "--node", "node_1") == ExitCode.OK
    assert cli.err == "No job lost a worker.\n"


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("--node", "a", "--pool", "b"),
        ("--node", "a", "--silent", "--notice", "5s"),
        ("--pool", "b", "--notice", "x"),
    ],
)
def test_a_drill_of_nothing_or_in_two_ways_is_refused(cli: Cli, words: tuple[str, ...]) -> None:
    assert cli("drill", *words) == ExitCode.USAGE
    assert cli.err.count("\n") == 1
