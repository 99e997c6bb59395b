"""Many jobs from one specification, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remora.states import JobState
from service.queue import arrays as decisions
from service.queue.arrays import ArrayQueue
from service.store.database import Database
from tests.contracts.service.owners import Owner, owner_of
from tests.statements import statements

pytestmark = pytest.mark.postgresql_in_soak

SPEC = {"command": "python train.py --lr ${{array.lr}}", "name": "sweep"}


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path, nodes=6) as made:
        yield made


def submit(
    owner: Owner, size: int, most: int | None = None, status: int = 201, **fields: Any
) -> dict[str, Any]:
    array = {"grid": {"lr": [one / 10 for one in range(size)]}, "most_at_once": most}
    answer = owner.client.post("/v1/arrays", json={**SPEC, "array": array, **fields})
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


def elements(owner: Owner, array: dict[str, Any]) -> list[str]:
    """Ids of its jobs, by their numbers."""
    items = owner.client.get("/v1/jobs", params={"array": array["id"]}).json()["items"]
    return [one["id"] for one in sorted(items, key=lambda one: one["array"]["index"])]


def shown(owner: Owner, array: dict[str, Any]) -> dict[str, Any]:
    answer = owner.client.get(f"/v1/arrays/{array['id']}")
    assert answer.status_code == 200, answer.text
    body: dict[str, Any] = answer.json()
    return body


def in_queue(owner: Owner, jobs: list[str]) -> list[int]:
    """Numbers of the jobs that are not held back and have not ended."""
    rows = [owner.job(job_id) for job_id in jobs]
    return [number for number, row in enumerate(rows) if not row.is_held and not row.state.is_terminal]


def test_each_combination_is_a_job_of_its_own(owner: Owner) -> None:
    array = submit(owner, 3, labels={"lr": "${{array.lr}}"})
    assert (array["size"], array["jobs"], array["terminal"]) == (3, {"queued": 3}, False)
    jobs = elements(owner, array)
    first = owner.client.get(f"/v1/jobs/{jobs[1]}").json()
    assert first["array"] == {"array_id": array["id"], "index": 1, "parameters": {"lr": 0.1}}
    assert (first["name"], first["spec"]["command"][-1]) == ("sweep-1", "0.1")
    assert (first["spec"]["array"], first["labels"]) == (None, {"lr": "0.1"})
    owner.world.tick(8)
    for job_id in jobs:
        owner.train(job_id)
        owner.end(job_id)
    after = shown(owner, array)
    assert (after["jobs"], after["terminal"]) == ({"succeeded": 3}, True)
    listed = owner.client.get("/v1/arrays").json()["items"]
    assert [(one["id"], one["jobs"]) for one in listed] == [(array["id"], {"succeeded": 3})]


def test_only_so_many_are_in_the_queue_and_the_next_one_follows(owner: Owner) -> None:
    array = submit(owner, 5, most=2)
    jobs = elements(owner, array)
    held = owner.job(jobs[2])
    said = f"waits for other jobs of its array {array['id']}, of which 2 may run at once"
    assert (held.reason, held.message) == ("waiting_for_array", said)
    owner.world.tick(10)
    assert in_queue(owner, jobs) == [0, 1]
    assert owner.job(jobs[2]).version == held.version, "nothing is written while it waits"
    owner.train(jobs[0])
    owner.end(jobs[0], "start_failed")
    owner.world.tick()
    assert in_queue(owner, jobs) == [1, 2]
    owner.ask(jobs[3], "cancel")
    owner.world.tick(2)
    assert in_queue(owner, jobs) == [1, 2]
    owner.ask(jobs[2], "cancel")
    owner.world.tick(2)
    assert in_queue(owner, jobs) == [1, 4]
    assert ("job.waiting", "its array has capacity for it; waits to be looked at") in owner.events(jobs[4])


def test_a_paused_one_frees_its_place_and_waits_for_another_when_it_is_resumed(owner: Owner) -> None:
    jobs = elements(owner, submit(owner, 3, most=1))
    owner.train(jobs[0])
    owner.ask(jobs[0], "pause")
    owner.run_until(jobs[0], JobState.PAUSED)
    owner.world.tick(2)
    assert in_queue(owner, jobs[1:]) == [0]
    owner.ask(jobs[0], "resume")
    owner.world.tick(3)
    assert (owner.job(jobs[0]).reason, owner.job(jobs[0]).is_held) == ("waiting_for_array", True)
    owner.train(jobs[1])
    owner.end(jobs[1])
    owner.run_until(jobs[0], JobState.ADMITTED)
    assert in_queue(owner, jobs) == [0]


def test_it_waits_for_other_jobs_too(owner: Owner) -> None:
    first = owner.submit(name="prepare")
    jobs = elements(owner, submit(owner, 3, most=1, after=[first]))
    assert {owner.job(job_id).reason for job_id in jobs} == {"waiting_for_jobs"}
    owner.train(first)
    owner.end(first)
    owner.world.tick(2)
    assert owner.job(jobs[1]).reason == "waiting_for_array"
    owner.train(jobs[0])
    owner.end(jobs[0])
    owner.run_until(jobs[1], JobState.ADMITTED)
    refused = submit(owner, 3, status=422, after=[jobs[2].replace("job_", "job_0")[:30]])
    assert "there is no job" in refused["detail"]


def test_all_of_them_are_cancelled(owner: Owner) -> None:
    array = submit(owner, 4, most=2)
    jobs = elements(owner, array)
    owner.train(jobs[0])
    answer = owner.client.post(f"/v1/arrays/{array['id']}/cancel")
    assert (answer.status_code, answer.json()["jobs"]) == (
        202,
        {"admitted": 1, "cancelled": 2, "running": 1},
    )
    owner.run_until(jobs[0], JobState.CANCELLED)
    owner.run_until(jobs[1], JobState.CANCELLED)
    assert shown(owner, array)["terminal"]
    assert owner.client.post("/v1/arrays/array_x/cancel").status_code == 404


def test_a_controller_that_dies_while_it_releases_one_loses_none(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = elements(owner, submit(owner, 3, most=1))
    owner.train(jobs[0])
    owner.world.launcher.driver_of(jobs[0]).report("ended", end_reason="completed", message="", exit_code=0)

    class Killed(BaseException):
        """The process dies here."""

    def die(*rest: object, **named: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(decisions, "released", die)
        patch.setattr("service.loops.arrays.released", die)
        with pytest.raises(Killed):
            owner.world.tick()
    assert owner.job(jobs[0]).state is JobState.SUCCEEDED
    assert in_queue(owner, jobs) == []
    owner.world.succeed()
    owner.world.tick()
    assert in_queue(owner, jobs) == [1]


def test_one_that_is_cancelled_between_two_looks_is_followed_by_the_next(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = elements(owner, submit(owner, 4, most=1))
    owner.ask(jobs[0], "cancel")
    looks = []

    def released(queues: list[ArrayQueue]) -> list[str]:
        looks.append(decisions.released(queues))
        if len(looks) == 1:
            owner.ask(jobs[1], "cancel")
        return looks[-1]

    monkeypatch.setattr("service.loops.arrays.released", released)
    owner.world.tick(3)
    assert looks[:2] == [[jobs[1]], [jobs[2]]]
    assert in_queue(owner, jobs) == [2]


def test_the_same_key_makes_one_array(owner: Owner) -> None:
    body = {**SPEC, "array": {"list": [{"lr": 1}, {"lr": 2}]}}
    answers = [owner.client.post("/v1/arrays", json=body, headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert answers[0].content == answers[1].content
    assert answers[1].headers["idempotency-replayed"] == "true"
    assert len(owner.client.get("/v1/arrays").json()["items"]) == 1


def test_what_cannot_be_is_refused_and_nothing_is_stored(owner: Owner, database: Database) -> None:
    assert submit(owner, 3, status=422, workers=0)["errors"][0]["field"] == "workers"
    answer = owner.client.post("/v1/arrays", json=SPEC)
    assert "is not among the values" in answer.json()["detail"]
    answer = owner.client.post("/v1/arrays", json={"command": "x"})
    assert answer.json()["detail"] == "array: missing; submit one job to /v1/jobs"
    answer = owner.client.post("/v1/jobs", json={**SPEC, "array": {"grid": {"lr": [1]}}})
    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "array")
    assert owner.client.get("/v1/arrays").json()["items"] == []
    assert owner.client.get("/v1/jobs").json()["items"] == []


def test_the_limit_of_jobs_counts_all_of_them(database: Database, database_url: str, tmp_path: Path) -> None:
    with owner_of(database, database_url, tmp_path, max_active_jobs=4) as owner:
        assert submit(owner, 5, status=429)["code"] == "too_many_jobs"
        submit(owner, 4)


def test_its_row_goes_with_the_last_of_its_jobs(owner: Owner) -> None:
    array = submit(owner, 2, resources={"cpus": 50})
    jobs = elements(owner, array)
    for number, job_id in enumerate(jobs):
        owner.ask(job_id, "cancel")
        assert owner.client.delete(f"/v1/jobs/{job_id}").status_code == 202
        owner.world.tick(5)
        if not number:
            assert shown(owner, array)["jobs"] == {"queued": 1, "deleted": 1}
    assert owner.client.get(f"/v1/arrays/{array['id']}").status_code == 404


def test_statements_do_not_grow_with_the_jobs_of_an_array(owner: Owner, database: Database) -> None:
    made, settled = [], []
    for size in (3, 3, 30):
        with statements(database) as sent:
            array = submit(owner, size, most=1, resources={"cpus": 50})
        made.append(len(sent))
        jobs = elements(owner, array)
        owner.world.tick(2)
        owner.ask(jobs[0], "cancel")
        with statements(database) as sent:
            owner.world.tick()
        settled.append(len(sent))
        owner.client.post(f"/v1/arrays/{array['id']}/cancel")
        owner.world.tick(3)
    assert made[1] == made[2]
    assert settled[1] == settled[2]


def test_places_are_given_in_the_order_of_the_jobs() -> None:
    queue = ArrayQueue(array_id="a", most_at_once=3, active=1, held=["x", "y", "z"])
    assert decisions.released([queue]) == ["x", "y"]
    assert decisions.released([ArrayQueue(array_id="a", most_at_once=1, active=2, held=["x"])]) == []
    assert decisions.released([ArrayQueue(array_id="a", most_at_once=None, active=9, held=["x", "y"])]) == [
        "x",
        "y",
    ]


def trained(owner: Owner, jobs: list[str]) -> None:
    """Each of them trains on a node of its own."""
    owner.world.tick(8)
    for job_id in jobs:
        owner.train(job_id)


def measure(owner: Owner, job_id: str, step: int, loss: float) -> None:
    driver = owner.world.launcher.driver_of(job_id)
    driver.report("metric", at=owner.world.now, step=step, world_size=1, values={"loss": loss})
    owner.world.tick()


EARLY = {"metric": "loss", "mode": "min", "first_step": 10}


def test_a_job_that_does_worse_than_others_is_stopped_and_the_next_one_follows(owner: Owner) -> None:
    array = {"grid": {"lr": [1, 2, 3, 4, 5]}, "most_at_once": 4, "stop_early": EARLY}
    answer = owner.client.post("/v1/arrays", json={**SPEC, "array": array})
    assert answer.status_code == 201, answer.text
    jobs = elements(owner, answer.json())
    trained(owner, jobs[:4])
    for number, job_id in enumerate(jobs[:3]):
        measure(owner, job_id, 10, float(number))
    assert {owner.job(job_id).state for job_id in jobs[:4]} == {JobState.RUNNING}
    measure(owner, jobs[3], 9, 9.0)
    assert owner.job(jobs[3]).state is JobState.RUNNING
    measure(owner, jobs[3], 10, 9.0)
    job = owner.run_until(jobs[3], JobState.CANCELLED)
    said = "at step 10 its best loss is 9, and 3 of the 4 jobs of its array that came there have a better one"
    assert (job.reason, job.message) == ("stopped_early", said)
    assert ("job.stopped_early", said) in owner.events(jobs[3])
    owner.run_until(jobs[4], JobState.ADMITTED)
    measure(owner, jobs[0], 20, 0.0)
    assert owner.job(jobs[0]).compared_at == 40


def test_a_bandit_counts_reports_and_one_that_is_repeated_once(owner: Owner) -> None:
    rule = {"metric": "loss", "policy": "bandit", "slack_amount": 2, "every": 2}
    array = {"grid": {"lr": [1, 2]}, "stop_early": rule}
    jobs = elements(owner, owner.client.post("/v1/arrays", json={**SPEC, "array": array}).json())
    trained(owner, jobs)
    for step, loss in ((5, 3.0), (9, 1.0)):
        measure(owner, jobs[0], step, loss)
    measure(owner, jobs[1], 6, 4.0)
    measure(owner, jobs[1], 6, 4.0)
    assert owner.job(jobs[1]).metric_reports == 1
    assert owner.job(jobs[1]).state is JobState.RUNNING
    measure(owner, jobs[1], 7, 3.5)
    job = owner.run_until(jobs[1], JobState.CANCELLED)
    assert (job.reason, job.metric_reports, job.metric_sum, job.metric_step) == ("stopped_early", 2, 7.5, 7)
    assert job.message == (
        "at its report 2 of the metric its best loss is 3.5, and the best one of its array is 1, of which the slack"
        " allows 3"
    )
    assert owner.job(jobs[0]).state is JobState.RUNNING


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ({"metric": "loss"}, "the policy halving needs first_step"),
        ({"metric": "loss", "policy": "bandit"}, "the policy bandit needs slack_factor or slack_amount"),
        ({"metric": "loss", "policy": "median", "percent": 5}, "percent is not for the policy median"),
        ({"metric": "loss", "first_step": 1, "every": 2}, "every and delay are not for the policy halving"),
        ({"metric": "loss", "policy": "luck"}, "halving, bandit, median or truncation"),
    ],
)
def test_a_policy_has_its_own_fields(owner: Owner, rule: dict[str, Any], said: str) -> None:
    answer = owner.client.post(
        "/v1/arrays", json={**SPEC, "array": {"grid": {"lr": [1]}, "stop_early": rule}}
    )
    assert answer.status_code == 422
    assert said in answer.text


def test_a_controller_that_dies_after_the_comparison_still_stops_the_job(owner: Owner) -> None:
    array = {"grid": {"lr": [1, 2, 3, 4]}, "stop_early": EARLY}
    jobs = elements(owner, owner.client.post("/v1/arrays", json={**SPEC, "array": array}).json())
    trained(owner, jobs)
    owner.world.launcher.loses_stops = True
    for number, job_id in enumerate(jobs):
        measure(owner, job_id, 10, float(number))
    assert owner.job(jobs[3]).stopped_early is not None
    assert owner.job(jobs[3]).state is JobState.RUNNING
    owner.world.launcher.loses_stops = False
    owner.world.succeed()
    assert owner.run_until(jobs[3], JobState.CANCELLED).reason == "stopped_early"
    assert len(owner.events(jobs[3], "job.stopped_early")) == 1


def test_a_failure_of_a_job_that_is_being_stopped_is_not_retried(owner: Owner) -> None:
    array = {"grid": {"lr": [1, 2, 3, 4]}, "stop_early": EARLY}
    jobs = elements(owner, owner.client.post("/v1/arrays", json={**SPEC, "array": array}).json())
    trained(owner, jobs)
    driver = owner.world.launcher.driver_of(jobs[3])
    driver.obeys = False
    for number, job_id in enumerate(jobs):
        measure(owner, job_id, 10, float(number))
    driver.report("ended", end_reason="exit_code", message="It ended.", exit_code=1)
    owner.world.tick()
    assert (owner.job(jobs[3]).state, owner.job(jobs[3]).reason) == (JobState.CANCELLED, "stopped_early")
