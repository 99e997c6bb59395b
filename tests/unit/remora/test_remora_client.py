"""The blocking and the asynchronous client against a real server: what they send, repeat, resume and refuse."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from remora import AsyncClient, Client, JobSpec, JobState, NodeState
from remora.errors import (
    ApiError,
    ConfigurationError,
    Conflict,
    ConnectionFailed,
    DownloadError,
    Invalid,
    NotFound,
    SpecError,
    TooLarge,
    Unavailable,
    WaitTimeout,
)
from remora.views import Checkpoint, JobPhase, MetricPoint, Node, OutputFile, Page, Pool
from tests.unit.remora.fake_service import FakeService, problem, serve, tar_of

Call = Callable[..., Any]


async def _gather(stream: Any) -> list[Any]:
    return [item async for item in stream]


@pytest.fixture(params=["blocking", "asynchronous"])
def call(request: pytest.FixtureRequest) -> Call:
    """Make one call by one of the two clients; streams come back as lists."""

    def blocking(name: str, *args: Any, client: dict[str, Any] | None = None, **options: Any) -> Any:
        with Client(**(client or {})) as one:
            found = getattr(one, name)(*args, **options)
            return list(found) if name in ("events", "logs") else found

    def asynchronous(name: str, *args: Any, client: dict[str, Any] | None = None, **options: Any) -> Any:
        async def go() -> Any:
            async with AsyncClient(**(client or {})) as one:
                found = getattr(one, name)(*args, **options)
                return await (_gather(found) if name in ("events", "logs") else found)

        return asyncio.run(go())

    return blocking if request.param == "blocking" else asynchronous


def test_code_is_uploaded_once_and_the_job_names_its_digest(
    service: FakeService, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('hello')")
    spec = {"command": "python train.py", "code": str(tmp_path)}

    first = call("submit", spec)
    second = call("submit", spec)

    (digest,) = service.bundles
    assert first.spec["code"] == second.spec["code"] == digest
    assert service.count("HEAD", f"/v1/bundles/{digest}") == 2
    assert service.count("PUT", f"/v1/bundles/{digest}") == 1
    assert first.id != second.id


def test_the_same_key_makes_one_job(service: FakeService, call: Call) -> None:
    jobs = [call("submit", {"command": "true"}, idempotency_key="once") for _ in range(2)]

    assert jobs[0].id == jobs[1].id
    with pytest.raises(Conflict, match="another job"):
        call("submit", {"command": "false"}, idempotency_key="once")


def test_a_lost_answer_to_a_submission_does_not_make_a_second_job(service: FakeService, call: Call) -> None:
    service.faults = [None, problem(503, "starting", "not yet"), None]

    call("submit", {"command": "true"})

    posts = [seen for seen in service.requests if seen.method == "POST"]
    assert len(posts) == 4
    assert len({seen.headers["idempotency-key"] for seen in posts}) == 1
    assert len(service.jobs) == 1


def test_a_request_that_may_have_been_done_is_not_sent_again(service: FakeService, call: Call) -> None:
    job = service.add_job()
    service.faults = [None]

    with pytest.raises(ConnectionFailed):
        call("cancel", job.id)

    assert service.count("POST", f"/v1/jobs/{job.id}/cancel") == 1


def test_retry_after_decides_the_pause_and_the_budget_ends_it(service: FakeService, call: Call) -> None:
    wait_long = problem(503, "busy", "too much to do")
    service.faults = [(wait_long[0], {"Retry-After": "3600"}, wait_long[2])]

    with pytest.raises(Unavailable, match="too much to do"):
        call("health")

    assert len(service.requests) == 1
    service.faults = [(429, {"Retry-After": "0"}, b"{}")] * 3
    assert call("health").status == "ok"


def test_lists_are_read_to_their_last_page(service: FakeService, call: Call) -> None:
    service.page_limit = 7
    for number in range(20):
        service.add_job(f"job-{number}")
    job = service.add_job()
    for number in range(20):
        service.add_event(job, f"kind.{number}")
        service.add_log(job, f"line {number}", rank=number % 2)
    service.metrics = [
        MetricPoint(step=step, at=1.0, attempt=1, world_size=2, values={"loss": 1 / (step + 1)})
        for step in range(20)
    ]
    service.nodes = [Node(id=f"node_{at}", pool="local", state="ready", created_at=1.0) for at in range(9)]  # type: ignore[arg-type]

    assert [one.name for one in call("jobs")] == ["digits", *(f"job-{at}" for at in range(19, -1, -1))]
    assert len(call("jobs", limit=8)) == 8
    assert [one.seq for one in call("events", job.id, after=3)] == list(range(4, 21))
    assert [one.seq for one in call("events", job.id, tail=9)] == list(range(12, 21)), "two pages"
    assert [one.seq for one in call("events", job.id, tail=1, kinds=["kind.3", "kind.5"])] == [6]
    service.phases = [JobPhase(attempt=1, number=at, phase="training", began_at=at) for at in range(9)]
    assert call("phases", job.id) == service.phases
    assert [one.text for one in call("logs", job.id, rank=1)] == [f"line {at}" for at in range(1, 20, 2)]
    assert [one.text for one in call("logs", job.id, tail=2)] == ["line 18", "line 19"]
    assert [one.step for one in call("metrics", job.id, after_step=4)] == list(range(5, 20))
    assert len(call("nodes")) == 9
    service.pools = [Pool(name=f"pool-{at}", nodes={NodeState.READY: at}) for at in range(9)]
    assert call("pools") == service.pools


@pytest.mark.parametrize("name", ["logs", "events"])
def test_the_first_item_is_there_with_its_page(service: FakeService, name: str) -> None:
    service.page_limit = 7
    job = service.add_job(state=JobState.SUCCEEDED)
    for number in range(20):
        service.add_event(job, f"kind.{number}")
        service.add_log(job, f"line {number}")

    async def first_of_asynchronous() -> int:
        async with AsyncClient() as client:
            return (await anext(getattr(client, name)(job.id))).seq

    with Client() as client:
        assert next(getattr(client, name)(job.id)).seq == 1
    assert service.count("GET", f"/v1/jobs/{job.id}/{name}") == 1
    assert asyncio.run(first_of_asynchronous()) == 1
    assert service.count("GET", f"/v1/jobs/{job.id}/{name}") == 2


def test_a_stream_that_breaks_everywhere_has_neither_gap_nor_double(service: FakeService, call: Call) -> None:
    job = service.add_job(state=JobState.SUCCEEDED)
    for number in range(60):
        service.add_event(job, f"kind.{number}")
    service.breaks = [0, 1, 5, 0, 2, 30, 1]
    service.faults = [None, problem(503, "starting", "not yet")]

    seqs = [event.seq for event in call("events", job.id, follow=True)]

    assert seqs == list(range(1, 61))
    assert not service.breaks
    assert not service.faults
    resumed = [seen.headers["last-event-id"] for seen in service.requests if "last-event-id" in seen.headers]
    assert resumed == ["1", "6", "6", "8", "38", "39"]


def test_a_stream_goes_on_after_the_service_was_away(call: Call) -> None:
    service = FakeService()
    job = service.add_job()
    service.add_log(job, "before")
    lines: list[str] = []

    def follow(url: str) -> None:
        lines.extend(line.text for line in call("logs", job.id, follow=True, client={"server": url}))

    with serve(service) as running:
        port = int(running.url.rsplit(":", 1)[1])
        reader = threading.Thread(target=follow, args=(running.url,))
        reader.start()
        _wait_until_followed(service, job.id, "logs")
    service.add_log(job, "after")
    service.change(job, state=JobState.SUCCEEDED)
    with serve(service, port):
        reader.join(timeout=20)

    assert lines == ["before", "after"]


def test_following_an_unknown_job_says_so(service: FakeService, call: Call) -> None:
    with pytest.raises(NotFound, match="there is no job"):
        call("events", "job_unknown", follow=True)


def test_wait_returns_the_ended_job(service: FakeService, call: Call) -> None:
    job = service.add_job()

    def end() -> None:
        _wait_until_followed(service, job.id, "events")
        service.add_event(job, "job.failed")
        service.change(job, state=JobState.FAILED)

    ender = threading.Thread(target=end)
    ender.start()
    ended = call("wait", job.id, 20)
    ender.join()

    assert ended.state is JobState.FAILED


def _wait_until_followed(service: FakeService, job_id: str, kind: str) -> None:
    path = f"/v1/jobs/{job_id}/{kind}"
    with service.changed:
        assert service.changed.wait_for(lambda: service.count("GET", path) > 0, timeout=10)


def test_wait_gives_up_and_leaves_the_job_alone(service: FakeService, call: Call) -> None:
    job = service.add_job()

    with pytest.raises(WaitTimeout, match="goes on"):
        call("wait", job.id, 0.2)

    assert not service.jobs[job.id].terminal


def test_wait_looks_now_and_then_where_streams_do_not_pass(
    service: FakeService, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("remora.client.blocking", "remora.client.asynchronous"):
        monkeypatch.setattr(f"{module}.POLL_S", 0.01)
    job = service.add_job()
    body = service.jobs[job.id].model_dump_json().encode()
    done = job.model_copy(update={"state": JobState.SUCCEEDED, "terminal": True}).model_dump_json().encode()
    refused = problem(406, "not_acceptable", "no streams here")
    service.faults = [(200, {}, body), refused, (200, {}, body), refused, (200, {}, done)]

    assert call("wait", job.id, 20).state is JobState.SUCCEEDED


def test_a_checkpoint_becomes_a_folder(service: FakeService, call: Call, tmp_path: Path) -> None:
    job = service.add_job()
    service.checkpoints = [_checkpoint(10), _checkpoint(20)]
    service.archive = tar_of({"model.pt": b"weights", "sub/optimizer.pt": b"moments"})

    chosen = call("download", job.id, tmp_path / "out")

    assert chosen.step == 20
    assert service.requests[-1].path.endswith("/checkpoints/20/content")
    assert (tmp_path / "out/sub/optimizer.pt").read_bytes() == b"moments"
    with pytest.raises(DownloadError, match="there already"):
        call("download", job.id, tmp_path / "out", step=10)
    with pytest.raises(NotFound, match=r"no checkpoint of step 11; it has 10, 20"):
        call("download", job.id, tmp_path / "other", step=11)


@pytest.mark.parametrize(
    "archive", [b"no archive", tar_of({"../outside": b"x"}), tar_of({"a": b"x" * 9999})[:2000]]
)
def test_a_bad_archive_leaves_nothing(
    service: FakeService, call: Call, tmp_path: Path, archive: bytes
) -> None:
    job = service.add_job()
    service.checkpoints = [_checkpoint(10)]
    service.archive = archive
    (tmp_path / "here").mkdir()

    with pytest.raises(DownloadError):
        call("download", job.id, tmp_path / "here" / "out")

    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]


def test_a_job_written_for_others_is_refused_with_what_to_do(
    service: FakeService, call: Call, tmp_path: Path
) -> None:
    (tmp_path / "job.yml").write_text("type: command\ncommand: python train.py\ncompute: azureml:x\n")
    with pytest.raises(SpecError, match=r"job.yml is an Azure ML command job; `remora submit` takes it"):
        call("submit", tmp_path / "job.yml")
    assert not service.jobs


def test_outputs_and_models_become_folders(service: FakeService, call: Call, tmp_path: Path) -> None:
    job = service.add_job()
    with pytest.raises(NotFound, match="no outputs yet"):
        call("download_outputs", job.id, tmp_path / "none")
    service.outputs = {"a b.txt": b"weights", "sub/c": b""}
    service.versions = 2
    assert [file.name for file in call("outputs", job.id)] == ["a b.txt", "sub/c"]
    call("download_outputs", job.id, tmp_path / "out")
    assert (tmp_path / "out/a b.txt").read_bytes() == b"weights"
    with pytest.raises(DownloadError, match="there already"):
        call("download_outputs", job.id, tmp_path / "out")

    assert [model.version for model in call("models")] == [2]
    assert [model.version for model in call("model_versions", "digits")] == [2, 1]
    assert call("download_model", "digits", tmp_path / "model").version == 2
    assert [one.query.get("limit") for one in service.requests if one.path.endswith("/versions")][-1] == "1"
    assert call("download_model", "digits", tmp_path / "first", version=1).version == 1
    assert (tmp_path / "model/sub/c").exists()
    with pytest.raises(NotFound, match="no version 3 of digits"):
        call("download_model", "digits", tmp_path / "other", version=3)
    with pytest.raises(NotFound, match=r"no model '\.\./x'"):
        call("model_versions", "../x")


@pytest.mark.parametrize("name", ["../outside", "/outside", "sub/../../outside"])
def test_a_file_that_leads_out_of_the_folder_leaves_nothing(
    service: FakeService, call: Call, tmp_path: Path, name: str
) -> None:
    job = service.add_job()
    service.outputs = {"fine": b"x", name: b"x"}
    (tmp_path / "here").mkdir()
    with pytest.raises(DownloadError, match="does not lie inside"):
        call("download_outputs", job.id, tmp_path / "here" / "out")
    assert list(tmp_path.rglob("*")) == [tmp_path / "here"]


def test_a_file_that_arrives_damaged_is_refused(service: FakeService, call: Call, tmp_path: Path) -> None:
    job = service.add_job()
    service.outputs = {"fine": b"x"}
    announced = Page(items=[OutputFile(name="fine", size_bytes=1, sha256="0" * 64)])
    service.faults = [(200, {}, announced.model_dump_json().encode())]
    with pytest.raises(DownloadError, match="fine arrived damaged"):
        call("download_outputs", job.id, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def _checkpoint(step: int) -> Checkpoint:
    return Checkpoint(
        step=step,
        attempt=1,
        world_size=2,
        committed_at=1.0,
        size_bytes=9,
        location="/x",
        files={"model.pt": 9},
    )


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, Invalid), (404, NotFound), (409, Conflict), (413, TooLarge), (422, Invalid), (418, ApiError)],
)
def test_a_problem_becomes_an_error_with_all_it_says(
    service: FakeService, call: Call, status: int, kind: type[ApiError]
) -> None:
    fields = [{"field": "workers.min", "message": "-1 given"}]
    service.faults = [
        problem(status, "some_code", "It cannot be.", hint="Try again.", request_id="r1", errors=fields)
    ]

    with pytest.raises(kind) as caught:
        call("health")

    assert (caught.value.status, caught.value.code, caught.value.request_id) == (status, "some_code", "r1")
    assert str(caught.value) == "It cannot be; workers.min: -1 given; Try again."


@pytest.mark.parametrize("content", [b"<html>", b"[]", b"", b'{"status": 1}', b"\xff"])
def test_another_server_at_the_address_is_named(service: FakeService, call: Call, content: bytes) -> None:
    service.faults = [(200, {}, content)]
    with pytest.raises(ApiError, match="does not speak Remora's API"):
        call("health")
    service.faults = [(500, {}, content)]
    with pytest.raises(Unavailable, match="500 without saying why"):
        call("health")


def test_a_stream_of_something_else_is_named(service: FakeService, call: Call) -> None:
    job = service.add_job()
    service.faults = [(200, {"Content-Type": "text/html"}, b"<html>")]
    with pytest.raises(ApiError, match="does not speak"):
        call("events", job.id, follow=True)
    service.faults = [(200, {"Content-Type": "text/event-stream"}, b"event: event\ndata: {}\n\n")]
    with pytest.raises(ApiError, match="does not speak"):
        call("events", job.id, follow=True)


def test_no_service_at_the_address_says_how_to_start_it(call: Call) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConnectionFailed, match=f"{url}.*start it with: remora up"):
            call("jobs", client={"server": url, "retry_s": 0})


@pytest.mark.parametrize("job_id", ["../nodes", "", "a b", "x" * 200, "jöb", "..", "a/b", "a?b"])
def test_what_cannot_be_an_id_is_never_sent(service: FakeService, call: Call, job_id: str) -> None:
    with pytest.raises(NotFound):
        call("job", job_id)
    assert not service.requests


@pytest.mark.parametrize("key", ["", "a b", "x" * 129, "ü", "a\nb"])
def test_a_key_that_no_header_can_carry_is_refused(service: FakeService, call: Call, key: str) -> None:
    with pytest.raises(ConfigurationError):
        call("submit", {"command": "true"}, idempotency_key=key)


def test_a_bad_specification_is_refused_before_anything_is_sent(service: FakeService, call: Call) -> None:
    with pytest.raises(SpecError, match="workers"):
        call("submit", {"command": "true", "workers": 0})
    with pytest.raises(SpecError, match="cannot read"):
        call("submit", Path("/nowhere/job.yaml"))
    assert not service.requests


def test_jobs_are_found_by_the_beginning_of_their_id(service: FakeService, call: Call) -> None:
    with pytest.raises(NotFound, match="no job yet"):
        call("find", "last")
    one, two = service.add_job("one", id="job_01AAA"), service.add_job("two", id="job_01ABB")

    assert call("find", "last").id == two.id
    assert call("find", one.id).id == one.id
    assert call("find", "job_01AAA").id == one.id
    assert call("find", "01ab").id == two.id
    with pytest.raises(ApiError, match="2 jobs begin with '01A'"):
        call("find", "01A")
    with pytest.raises(NotFound, match="no job '02'"):
        call("find", "02")


def test_both_clients_have_the_same_calls() -> None:
    names = [{name for name in vars(kind) if not name.startswith("_")} for kind in (Client, AsyncClient)]
    assert names[0] == names[1]


def test_a_specification_object_is_taken_as_it_is(service: FakeService, call: Call) -> None:
    job = call("submit", JobSpec(command=["true"], name="as-it-is"))
    assert job.name == "as-it-is"
    assert job.spec["command"] == ["true"]
