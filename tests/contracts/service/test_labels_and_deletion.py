"""Labels of jobs and the deletion of ended ones, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remora.states import JobState
from service.queue.ledger import Entries, UseRow
from service.store import deletion, job_history, jobs, ledger
from service.store.database import Database
from service.store.idempotency_keys import SavedAnswer, save_answer
from service.store.job_history import LogFilter
from service.store.outputs import save_outputs
from tests.contracts.service.owners import Owner, owner_of
from tests.service_fakes import FakeDriver
from trainers.storage import Storage, StorageError

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path) as made:
        yield made


def found(owner: Owner, *labels: str) -> set[str]:
    answer = owner.client.get("/v1/jobs", params={"label": list(labels)})
    assert answer.status_code == 200, answer.text
    return {one["id"] for one in answer.json()["items"]}


def label(owner: Owner, job_id: str, status: int = 200, **labels: Any) -> dict[str, Any]:
    answer = owner.client.patch(f"/v1/jobs/{job_id}/labels", json=labels)
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


class TestLabels:
    def test_jobs_are_found_by_them(self, owner: Owner) -> None:
        first = owner.submit(labels={"team": "vision", "run": "3"})
        second = owner.submit(labels={"team": "nlp"})
        third = owner.submit()
        assert found(owner) == {first, second, third}
        assert found(owner, "team") == {first, second}
        assert found(owner, "team=vision") == {first}
        assert found(owner, "team=vision", "run=4") == set()
        assert found(owner, "team=vision", "run") == {first}

    def test_they_change_also_after_the_end_and_the_others_stay(self, owner: Owner) -> None:
        job_id = owner.submit(labels={"team": "vision", "run": "3"})
        before = owner.job(job_id).version
        answer = label(owner, job_id, team="a=b", run=None, new="")
        assert answer["labels"] == {"team": "a=b", "new": ""}
        assert answer["spec"]["labels"] == {"team": "vision", "run": "3"}
        assert answer["version"] == before + 1
        assert owner.events(job_id, "job.labelled") == [("job.labelled", "its labels are now new=, team=a=b")]
        assert label(owner, job_id, team="a=b")["version"] == before + 1, "nothing has changed"
        owner.ask(job_id, "cancel")
        label(owner, job_id, result="bad")
        assert found(owner, "team=a=b", "new", "result=bad") == {job_id}
        assert found(owner, "run") == set()

    def test_what_runs_keeps_them(self, owner: Owner) -> None:
        job_id = owner.submit(labels={"team": "vision"})
        driver = owner.train(job_id)
        label(owner, job_id, run="1")
        driver.report("metric", step=1, world_size=1, values={})
        owner.world.tick()
        assert owner.job(job_id).labels == {"team": "vision", "run": "1"}

    def test_bad_ones_are_refused_in_one_sentence(self, owner: Owner) -> None:
        job_id = owner.submit()
        assert "put quotes around it" in owner.refused(labels={"run": 3})
        assert "'-x' is not a label's name" in owner.refused(labels={"-x": "1"})
        assert label(owner, job_id, 422, run=3)["code"] == "invalid_change"
        assert label(owner, job_id, 422, run="a\nb")["code"] == "invalid_change"
        many = {f"n{number}": "x" for number in range(51)}
        assert "51 labels, expected at most 50" in label(owner, job_id, 409, **many)["detail"]
        answer = owner.client.get("/v1/jobs", params={"label": ["x"] * 21})
        assert answer.status_code == 422


def ended(owner: Owner, **fields: Any) -> str:
    """A job that ran, printed and saved something, and succeeded."""
    job_id = owner.submit(**fields)
    driver: FakeDriver = owner.train(job_id)
    for number in range(5):
        driver.report("log", rank=0, stream="stdout", text=str(number))
        driver.report("metric", step=number, world_size=1, values={"loss": 0.5})
    storage(owner).write_bytes(f"jobs/{job_id}/checkpoints/x/w", b"x")
    driver.report("ended", end_reason="completed", message="done", exit_code=0)
    owner.run_until(job_id, JobState.SUCCEEDED)
    owner.world.controller.listing.wait(10.0)
    owner.world.tick(3)
    return job_id


def storage(owner: Owner) -> Storage:
    return Storage(owner.world.settings.storage)


def delete(owner: Owner, job_id: str, status: int = 202) -> dict[str, Any]:
    answer = owner.client.delete(f"/v1/jobs/{job_id}")
    assert answer.status_code == status, answer.text
    body: dict[str, Any] = answer.json()
    return body


def is_there(owner: Owner, job_id: str) -> bool:
    return owner.world.database.query(lambda c: jobs.get_job(c, job_id)) is not None


def left_of(owner: Owner, job_id: str) -> int:
    return owner.world.database.query(
        lambda c: (
            len(job_history.page_of_logs(c, job_id, LogFilter(), 0, 100))
            + len(job_history.page_of_metrics(c, job_id, -1, 100))
        )
    )


class TestDeletion:
    def test_a_job_goes_with_its_files_and_rows_and_is_hidden_at_once(self, owner: Owner) -> None:
        job_id = ended(owner, labels={"team": "vision"})
        delete(owner, job_id)
        for path in ("", "/events", "/logs", "/outputs"):
            assert owner.client.get(f"/v1/jobs/{job_id}{path}").status_code == 404
        assert found(owner) == set()
        assert label(owner, job_id, 404)["code"] == "job_not_found"
        delete(owner, job_id)
        owner.world.tick(4)
        assert not is_there(owner, job_id)
        assert not storage(owner).exists(f"jobs/{job_id}")
        assert left_of(owner, job_id) == 0
        delete(owner, job_id, 404)

    def test_a_job_that_has_not_ended_is_not_deleted(self, owner: Owner) -> None:
        job_id = owner.submit()
        answer = delete(owner, job_id, 409)
        said = "the job is queued; cancel it first, and delete it when it has ended"
        assert (answer["code"], answer["detail"]) == ("not_changeable", said)

    def test_nor_is_one_whose_outputs_are_a_model(self, owner: Owner, database: Database) -> None:
        job_id = owner.submit(outputs={"final": {"model": "digits"}})
        driver = owner.train(job_id)
        file = {"size_bytes": 1, "sha256": "0" * 64, "stored": "u/final/a"}
        driver.report("output", location="/o", committed_at=1.0, files={"final/a": file})
        driver.report("ended", end_reason="completed", message="done", exit_code=0)
        owner.run_until(job_id, JobState.SUCCEEDED)
        assert database.query(lambda c: deletion.models_of(c, job_id)) == ["digits:1"]
        said = "its outputs are digits:1, and a job whose outputs are a model is kept"
        assert delete(owner, job_id, 409)["detail"] == said

    @pytest.mark.parametrize("at", ["before the files", "after the files"])
    def test_a_controller_that_dies_leaves_it_to_the_next_one(
        self, owner: Owner, at: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job_id = ended(owner)
        delete(owner, job_id)

        class Killed(BaseException):
            """The process dies here."""

        def die(*rest: object, **named: object) -> None:
            raise Killed

        with monkeypatch.context() as patch:
            if at == "before the files":
                patch.setattr(owner.world.controller.deletion, "_begin", die)
            else:
                patch.setattr(deletion, "forget", die)
            with pytest.raises(Killed):
                owner.world.tick(5)
        assert is_there(owner, job_id)
        assert storage(owner).exists(f"jobs/{job_id}") is (at == "before the files")
        owner.world.succeed()
        owner.world.tick(4)
        assert not is_there(owner, job_id)
        assert not storage(owner).exists(f"jobs/{job_id}")

    def test_a_storage_that_fails_is_asked_again_later(self, owner: Owner) -> None:
        job_id = ended(owner)
        tries = []

        def fail(which: str, urls: list[str], _: object) -> None:
            tries.append((which, urls))
            if len(tries) == 1:
                raise StorageError("it does not answer")

        owner.world.controller.deletion._delete = fail
        delete(owner, job_id)
        owner.world.tick(10)
        assert tries == [(job_id, [owner.world.settings.storage])]
        owner.world.now += 61.0
        owner.world.controller.holder.step(owner.world.now)
        owner.world.tick(4)
        assert len(tries) == 2
        assert not is_there(owner, job_id)

    def test_its_row_stays_hidden_and_empty_while_the_bill_or_an_answer_needs_it(
        self, owner: Owner, database: Database
    ) -> None:
        paid, answered = ended(owner, environment={"variables": {"TOKEN": "x"}}), ended(owner)
        use = UseRow(
            job_id=paid, node_id="node_1", began_at=1.0, attempt=1, workers=1, pool="p", offering="o", part=1.0,
            price_per_hour=2.0, ended_at=3601.0,
        )  # fmt: skip
        database.transact(lambda c: ledger.write(c, Entries(begun=(use,))))
        answer = SavedAnswer("0", answered, "{}")
        database.transact(lambda c: save_answer(c, "key", answer, owner.world.now))
        for job_id in (paid, answered):
            delete(owner, job_id)
        owner.world.tick(8)
        for job_id in (paid, answered):
            row = owner.job(job_id)
            assert (row.spec, row.message, row.deleted_at is None) == ({}, None, False)
            assert left_of(owner, job_id) == 0
            assert owner.client.get(f"/v1/jobs/{job_id}").status_code == 404
        assert database.query(lambda c: ledger.spent(c, [paid], owner.world.now)) == {paid: 2.0}
        assert owner.client.get("/v1/trace", params={"since": 0}).status_code == 200
        assert database.query(deletion.next_going) is None

    def test_what_still_runs_of_it_is_waited_for(self, owner: Owner) -> None:
        job_id = owner.submit()
        owner.train(job_id)
        owner.world.launcher.loses_kills = True
        owner.end(job_id)
        delete(owner, job_id)
        owner.world.tick(5)
        assert is_there(owner, job_id)
        owner.world.launcher.loses_kills = False
        owner.world.tick(2)
        owner.world.controller.listing.wait(10.0)
        owner.world.tick(6)
        assert not is_there(owner, job_id)

    def test_the_outputs_of_a_deleted_job_are_listed_no_more(self, owner: Owner, database: Database) -> None:
        job_id = ended(owner)
        row = {"job_id": job_id, "attempt": 1, "committed_at": 1.0, "location": "/o", "files": {}}
        database.transact(lambda c: save_outputs(c, [row], {row["job_id"]: "default"}))
        delete(owner, job_id)
        owner.world.tick(5)
        assert not is_there(owner, job_id)
