"""Submitting once, and every command for people and for programs, on one job that has trained."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from remora import Client
from remora.views import Job
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S, until
from tests.e2e.raw_http import RawClient
from tests.e2e.scripts import Steps

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def trained(shared_service: Embedded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """A job of two workers and ten steps that has succeeded."""
    script = Steps(tmp_path_factory.mktemp("trained"), steps=10)
    script.allow_all()
    with shared_service.client() as client:
        job = client.submit(script.spec)
        yield client.wait(job.id, PATIENCE_S)


def test_the_same_key_is_the_same_job(service: Embedded, client: Client, folder: Path) -> None:
    (folder / "train.py").write_text("print('once')")
    words = ("submit", "--json", "--idempotency-key", "tuesday", "--", "python", "train.py")
    first, second = (service.remora(*words, folder=folder).document for _ in range(2))
    assert first["id"] == second["id"]
    other = service.remora(*words, "--twice", folder=folder)
    assert (other.code, "key" in other.complaint) == (1, True)
    assert client.wait(first["id"], PATIENCE_S).attempt == 1


def test_unchanged_code_is_uploaded_once(service: Embedded, folder: Path) -> None:
    (folder / "train.py").write_text("print('the same')")
    (folder / ".gitignore").write_text("*.log\n")
    before = uploads(service)
    digests = set()
    for number in range(2):
        (folder / f"{number}.log").write_text("ignored, so it changes nothing")
        job = service.remora("submit", "--json", "--cpus", "64", "--", "python", "train.py", folder=folder)
        digests.add(job.document["spec"]["code"])
    after = uploads(service)
    assert len(digests) == 1
    assert {
        name: after[name] - before.get(name, 0.0) for name in after if after[name] != before.get(name)
    } == {
        ("HEAD", "404"): 1.0,
        ("PUT", "201"): 1.0,
        ("HEAD", "200"): 1.0,
    }


def uploads(service: Embedded) -> dict[tuple[str, str], float]:
    """Requests for bundles so far by method and status, as Prometheus sees them."""
    text = RawClient(service.url).send("GET", "/metrics").body.decode()
    pattern = (
        r'^remora_http_requests_total\{method="(\w+)",route="/v1/bundles/\{digest\}",status="(\d+)"\} (\S+)'
    )
    return {(method, status): float(n) for method, status, n in re.findall(pattern, text, re.MULTILINE)}


def test_every_command_speaks_json(service: Embedded, trained: Job, tmp_path: Path) -> None:
    def document(*words: str) -> object:
        answer = service.remora(*words, "--json", folder=tmp_path)
        assert answer.code == 0, answer.err
        return answer.document

    def ids(*words: str) -> list[object]:
        found = document(*words)
        assert isinstance(found, list)
        return [one["id"] for one in found]

    assert trained.id in ids("list")
    assert ids("nodes") == service.ready_nodes()
    for command in ("show", "wait"):
        assert document(command, trained.id) == trained.model_dump(mode="json")
    metrics = document("metrics", trained.id)
    assert isinstance(metrics, list)
    assert [point["step"] for point in metrics] == list(range(1, 11))
    checkpoints = document("checkpoints", trained.id)
    assert isinstance(checkpoints, list)
    assert document("download", trained.id, "-o", "here") == checkpoints[-1]
    assert document("version") == {"version": "0.1.0"}
    for command in ("logs", "events"):
        for follow in ((), ("-f",)):
            lines = service.remora(command, trained.id, "--json", *follow).lines
            assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    submitted = service.remora("submit", "--json", "--no-code", "--cpus", "64", "--", "python", "-V")
    assert submitted.document["state"] == "queued"
    cancelled = service.remora("cancel", submitted.document["id"], "--json")
    assert cancelled.document["state"] == "cancelled"


def test_every_command_prints_a_table(service: Embedded, trained: Job) -> None:
    def table(*words: str) -> list[list[str]]:
        answer = service.remora(*words)
        assert answer.code == 0, answer.err
        return [re.split(r"  +", line) for line in answer.out.splitlines()]

    assert table("list")[0][:4] == ["ID", "NAME", "STATE", "STEP"]
    assert [trained.id, "train", "succeeded", "10/10"] in [row[:4] for row in table("list")]
    header, *nodes = table("nodes")
    assert header[:3] == ["ID", "POOL", "STATE"]
    assert {tuple(row[1:3]) for row in nodes} == {("local", "ready")}
    assert table("metrics", trained.id)[:2] == [["STEP", "WORKERS", "SQUARE"], ["1", "2", "1"]]
    header, *checkpoints = table("checkpoints", trained.id)
    assert header[:3] == ["STEP", "ATTEMPT", "WORKERS"]
    assert checkpoints[-1][:3] == ["10", "1", "2"]
    shown = service.remora("show", trained.id.removeprefix("job_").lower()[:24])
    assert re.search(r"^1 +ended +completed +0 +beginning", shown.out, re.MULTILINE), shown
    logs = service.remora("logs", trained.id, "--rank", "1").out
    assert logs.splitlines() == [
        "rank 1 begins after step 0",
        *(f"rank 1 did step {n}" for n in range(1, 11)),
    ]
    header, *costs = table("ledger", trained.id, "--by", "cause")
    assert header == ["CAUSE", "NODE TIME", "GPU TIME", "USD"]
    assert {"starting", "training", "total"} <= {row[0] for row in costs}
    events = [one["kind"] for one in service.remora("events", trained.id, "--json").lines]
    assert events.count("training.began") == 1
    assert table("goodput", trained.id)[0][0] == "goodput"
    written = csv.DictReader(io.StringIO(service.remora("metrics", trained.id, "-o", "-").out))
    assert [float(row["square"]) for row in written] == [step**2 for step in range(1, 11)]


def test_a_download_is_what_the_store_keeps(
    service: Embedded, client: Client, trained: Job, tmp_path: Path
) -> None:
    kept = client.checkpoints(trained.id)[-1]
    target = tmp_path / "model"
    got = service.remora("download", trained.id, "-o", str(target), "--json").document
    assert (got["step"], set(got["files"])) == (10, {"rank-0", "rank-1"})
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {
        name: Path(kept.location, name).read_bytes() for name in kept.files
    }
    again = service.remora("download", trained.id, "-o", str(target))
    assert (again.code, str(target) in again.complaint) == (1, True), "what is there is not overwritten"
    assert service.remora("download", trained.id, "--step", "7777", "-o", str(tmp_path / "no")).code == 3


def test_a_specification_may_come_by_a_pipe(service: Embedded, client: Client) -> None:
    spec = json.dumps({"command": ["python", "-c", "print('from a pipe')"], "name": "piped"})
    job_id = service.remora("submit", "-q", "-", stdin=spec).out.strip()
    assert client.wait(job_id, PATIENCE_S).name == "piped"
    assert [line.text for line in client.logs(job_id)] == ["from a pipe"]


def test_the_stacks_of_a_job_that_trains_are_printed(service: Embedded, tmp_path: Path) -> None:
    script = Steps(tmp_path, steps=5)
    script.allow(2)
    with service.client() as client:
        job = client.submit(script.spec)
        until(lambda: script.done(0)[-1:] == [2] and script.done(1)[-1:] == [2], "both ranks wait at a step")
        answer = service.remora("stacks", job.id)
        assert answer.code == 0, answer.err
        assert "train.py" in answer.out, "the file in which the script waits"
        document = service.remora("stacks", job.id, "--rank", "1", "--json").document
        assert [one["rank"] for one in document["ranks"]] == [1]
        script.allow_all()
        client.wait(job.id, PATIENCE_S)
    refused = service.remora("stacks", job.id)
    assert (refused.code, "has ended already" in refused.complaint) == (1, True)
