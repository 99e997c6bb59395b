"""What-if over HTTP and at the command line: replays in a process of their own, one at a time."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from remora.views import Problem, WhatIf
from service.api.app import create_app
from service.settings import Settings
from tests.contracts.service import endless_plan

EXAMPLES = Path(__file__).parents[3] / "examples" / "what-if"

ENDLESS = {
    "traces": [{"name": "endless.jsonl", "text": endless_plan.TRACE}],
    "policies": [{"name": "endless.yaml", "text": endless_plan.POLICY}],
}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[TestClient]:
    settings = Settings(home=tmp_path / "home", max_trace_bytes=1_000_000)
    with TestClient(create_app(settings), base_url="http://127.0.0.1") as opened:
        yield opened


def document(name: str) -> dict[str, str]:
    return {"name": name, "text": (EXAMPLES / name).read_text()}


def body(*policies: str, **more: Any) -> dict[str, Any]:
    return {"traces": [document("trace.jsonl")], "policies": [document(name) for name in policies], **more}


def refused(answer: Any, status: int, code: str) -> str:
    found = Problem.model_validate_json(answer.content)
    assert (answer.status_code, found.code) == (status, code), answer.text
    return found.detail


def ended(client: TestClient, plan: WhatIf) -> WhatIf:
    deadline = time.monotonic() + 120
    while not plan.terminal and time.monotonic() < deadline:
        answer = client.get(f"/v1/plans/{plan.id}", params={"wait_s": 5})
        plan = WhatIf.model_validate_json(answer.content)
    return plan


def test_two_policies_are_compared(client: TestClient) -> None:
    answer = client.post("/v1/plans", json=body("prefer-spot.yaml", "on-demand.yaml", seed=3))
    begun = WhatIf.model_validate_json(answer.content)
    assert (answer.status_code, answer.headers["location"]) == (202, f"/v1/plans/{begun.id}")
    assert (begun.jobs, begun.policies) == (60, ["prefer-spot.yaml", "on-demand.yaml"])
    plan = ended(client, begun)
    assert (plan.state, plan.progress, plan.message) == ("done", 1.0, None)
    assert [report.policy for report in plan.reports] == begun.policies
    assert plan.reports[0].cost_usd < plan.reports[1].cost_usd
    assert plan.plot is not None
    assert client.get(f"/v1/plans/{plan.id}").json()["reports"] == [r.model_dump() for r in plan.reports]


def test_a_question_that_takes_too_long_to_read_is_refused(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("service.api.replays.QUESTION_S", 0.001)
        said = refused(client.post("/v1/plans", json=body("prefer-spot.yaml")), 422, "invalid_plan")
        assert said == "the question could not be read within 0 s: ask about fewer jobs"
    # Nothing of it stands in the way of the next one.
    assert client.post("/v1/plans", json=body("prefer-spot.yaml")).status_code == 202


def test_a_second_replay_waits_for_the_first(client: TestClient) -> None:
    first = client.post("/v1/plans", json=body("prefer-spot.yaml"))
    refused(client.post("/v1/plans", json=body("prefer-spot.yaml")), 429, "too_many_plans")
    ended(client, WhatIf.model_validate_json(first.content))
    assert client.post("/v1/plans", json=body("prefer-spot.yaml")).status_code == 202


def test_what_cannot_be_replayed_is_refused_with_its_line(client: TestClient) -> None:
    spoiled = {"name": "jobs.jsonl", "text": '\n{"kind": "job"}'}
    answer = client.post("/v1/plans", json={**body("on-demand.yaml"), "traces": [spoiled]})
    assert refused(answer, 422, "invalid_plan").startswith("jobs.jsonl, line 2: id: ")
    nested = {"name": "log.json", "text": "[" * 200_000}
    answer = client.post("/v1/plans", json={**body("on-demand.yaml"), "traces": [nested]})
    assert refused(answer, 422, "invalid_plan") == "log.json: its JSON is nested too deeply for a job log"
    endless = json.loads(document("trace.jsonl")["text"].splitlines()[-1])
    endless |= {"id": "endless", "at_s": 1e10}
    late = {"name": "late.jsonl", "text": json.dumps(endless)}
    answer = client.post(
        "/v1/plans", json={**body("on-demand.yaml"), "traces": [document("trace.jsonl"), late]}
    )
    assert refused(answer, 422, "invalid_plan").startswith(
        "the job 'endless' ends 115741 days after the trace"
    )
    answer = client.post("/v1/plans", json=body("on-demand.yaml", seed=-1))
    assert refused(answer, 422, "invalid_plan").startswith("seed: ")
    headers = {"content-type": "application/json"}
    for text in ("", "{", "\ufffe", "[" * 100_000):
        refused(client.post("/v1/plans", content=text.encode(), headers=headers), 400, "invalid_json")
    refused(client.post("/v1/plans", content="[]", headers=headers), 422, "invalid_plan")
    refused(client.post("/v1/plans", content="x" * 1_000_001, headers=headers), 413, "too_large")
    refused(client.post("/v1/plans", content="{}"), 415, "unsupported_media_type")


RULE = """
def frugal(view, launch):
    print("asked about", launch.pool)
    return "it is paid by the second" if launch.offering.endswith("/on-demand") else None
"""


def test_a_rule_that_is_installed_beside_the_service_is_asked(
    client: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "installed" / "our_rules-1.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text("Name: our_rules\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[remora.rules]\nfrugal = our_rules:frugal\n")
    (package.parent / "our_rules.py").write_text(RULE)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    asked = body("prefer-spot.yaml")
    asked["policies"][0]["text"] += "\nrules: [frugal, absent]\n"
    plan = ended(client, WhatIf.model_validate_json(client.post("/v1/plans", json=asked).content))
    assert plan.state == "done"
    assert plan.reports[0].on_demand_usd == 0.0 < plan.reports[0].spot_usd
    (note,) = plan.notes
    assert note.startswith("prefer-spot.yaml: the rule absent is passed over: no rule 'absent' is installed")


def test_there_is_no_other_plan(client: TestClient) -> None:
    refused(client.get("/v1/plans/plan_x"), 404, "plan_not_found")
    refused(client.get("/v1/plans/plan_x", params={"wait_s": 21}), 422, "invalid_parameter")


def test_a_replay_that_is_cancelled_ends_and_makes_way(client: TestClient) -> None:
    begun = WhatIf.model_validate_json(client.post("/v1/plans", json=ENDLESS).content)
    answer = client.delete(f"/v1/plans/{begun.id}")
    plan = WhatIf.model_validate_json(answer.content)
    assert (answer.status_code, plan.state, plan.terminal, plan.message) == (
        200,
        "cancelled",
        True,
        "it was cancelled",
    )
    (run,) = client.app.state.remora.replays._runs.values()  # type: ignore[attr-defined]
    assert run.process.returncode is not None
    answer = client.post("/v1/plans", json=body("prefer-spot.yaml"))
    done = ended(client, WhatIf.model_validate_json(answer.content))
    assert client.delete(f"/v1/plans/{done.id}").json() == done.model_dump()
    refused(client.delete("/v1/plans/plan_x"), 404, "plan_not_found")


def test_a_replay_ends_with_the_service(tmp_path: Path) -> None:
    with TestClient(create_app(Settings(home=tmp_path)), base_url="http://127.0.0.1") as client:
        answer = client.post("/v1/plans", json=body("prefer-spot.yaml", "on-demand.yaml", look_s=1))
        assert answer.status_code == 202
    assert json.loads(answer.content)["state"] == "running"
