"""A small real HTTP server that speaks the API's routes, with faults on order.

Everything lies in memory; a test reads what was asked (`requests`) and writes what shall happen (`faults`, `breaks`).
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
import json
import re
import tarfile
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar
from urllib.parse import parse_qs, unquote, urlsplit

from remora.spec.arrays import Array
from remora.states import JobState
from remora.views import (
    ArrayElement,
    Attempt,
    Checkpoint,
    ClusterLedger,
    CostReport,
    Drill,
    Event,
    GoodputReport,
    Job,
    JobArray,
    JobPhase,
    LogLine,
    MetricPoint,
    ModelVersion,
    Node,
    NodeEvent,
    OutputFile,
    Page,
    Pool,
    Profile,
    Project,
    RayRequest,
    Schedule,
    ScheduleRun,
    ShellExchange,
    View,
)

Reply = tuple[int, dict[str, str], bytes]
EntryT = TypeVar("EntryT", Event, LogLine)


@dataclass(frozen=True)
class Seen:
    """A request that arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class FakeService:
    """What the server knows and does."""

    jobs: dict[str, Job] = field(default_factory=dict)
    events: dict[str, list[Event]] = field(default_factory=dict)
    logs: dict[str, list[LogLine]] = field(default_factory=dict)
    metrics: list[MetricPoint] = field(default_factory=list)
    checkpoints: list[Checkpoint] = field(default_factory=list)
    archive: bytes = b""
    #: Files of every job's outputs, and of the versions of the model `digits`.
    outputs: dict[str, bytes] = field(default_factory=dict)
    versions: int = 0
    #: Profiles of every job as they are after a look at each list, the last list stays; and the trace of all.
    profiles: list[list[Profile]] = field(default_factory=list)
    trace: bytes = b""
    #: What each request for output of a shell is answered, the last one for ever.
    exchanges: list[ShellExchange] = field(default_factory=list)
    #: What was typed into it: a number and the bytes, of each request; of which the first `lost` are not kept.
    typed: list[tuple[int, bytes]] = field(default_factory=list)
    lost: int = 0
    #: How often it was closed.
    closed: int = 0
    nodes: list[Node] = field(default_factory=list)
    pools: list[Pool] = field(default_factory=list)
    projects: list[Project] = field(default_factory=list)
    ray_requests: list[RayRequest] = field(default_factory=list)
    cluster_ledger: ClusterLedger = field(
        default_factory=lambda: ClusterLedger(since=0.0, until=1.0, lines=[], node_s=0.0, cost=0.0)
    )
    #: Pages of what nodes were paid for.
    costs: list[CostReport] = field(default_factory=list)
    goodput: GoodputReport | None = None
    node_events: list[NodeEvent] = field(default_factory=list)
    #: How a drill stands, one at each look; the last one stays.
    drills: list[Drill] = field(default_factory=list)
    attempts: list[Attempt] = field(default_factory=list)
    #: Of the attempts of every job.
    phases: list[JobPhase] = field(default_factory=list)
    #: What happens just before a job is looked at, one at each look.
    scenes: list[Callable[[Job], None]] = field(default_factory=list)
    arrays: dict[str, JobArray] = field(default_factory=dict)
    schedules: dict[str, Schedule] = field(default_factory=dict)
    bundles: dict[str, bytes] = field(default_factory=dict)
    keys: dict[str, tuple[bytes, str]] = field(default_factory=dict)
    requests: list[Seen] = field(default_factory=list)
    #: Replies given instead of the real ones, first one first; None stands for a connection that is cut.
    faults: list[Reply | None] = field(default_factory=list)
    #: Each stream is cut after that number of items (and in the middle of the next), first one first.
    breaks: list[int] = field(default_factory=list)
    page_limit: int = 200
    changed: threading.Condition = field(default_factory=threading.Condition)
    stopping: bool = False
    url: str = ""

    def add_job(self, name: str = "digits", state: JobState = JobState.RUNNING, **values: Any) -> Job:
        """A job as the service would answer it."""
        number = len(self.jobs) + 1
        facts: dict[str, Any] = {
            "id": f"job_{number:026d}",
            "name": name,
            "project": "default",
            "state": state,
            "terminal": state.is_terminal,
            "priority": 50,
            "spec": {"command": ["python", "train.py"], "workers": {"min": 1, "max": 3}},
            "created_at": 1000.0 + number,
            "version": 1,
        }
        job = Job.model_validate(facts | values)
        with self.changed:
            self.jobs[job.id] = job
            self.events[job.id] = []
            self.logs[job.id] = []
        return job

    def change(self, job: Job, **values: Any) -> Job:
        """Another state of a job."""
        with self.changed:
            if "state" in values:
                values["terminal"] = values["state"].is_terminal
            self.jobs[job.id] = self.jobs[job.id].model_copy(update=values)
            self.changed.notify_all()
            return self.jobs[job.id]

    def add_event(self, job: Job, kind: str, message: str = "It happened.") -> None:
        with self.changed:
            seq = len(self.events[job.id]) + 1
            event = Event(seq=seq, job_id=job.id, at=2000.0 + seq, kind=kind, message=message)
            self.events[job.id].append(event)
            self.changed.notify_all()

    def add_log(self, job: Job, text: str, rank: int = 0) -> None:
        with self.changed:
            seq = len(self.logs[job.id]) + 1
            line = LogLine(seq=seq, at=2000.0, attempt=1, rank=rank, stream="stdout", text=text)
            self.logs[job.id].append(line)
            self.changed.notify_all()

    def count(self, method: str, path: str) -> int:
        """How often a path was asked for."""
        return sum(seen.method == method and seen.path == path for seen in self.requests)


def problem(status: int, code: str, detail: str, **more: Any) -> Reply:
    """A problem document."""
    body = {"title": code, "status": status, "code": code, "detail": detail, **more}
    return status, {"Content-Type": "application/problem+json"}, json.dumps(body).encode()


def tar_of(files: dict[str, bytes]) -> bytes:
    """A tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@contextlib.contextmanager
def serve(service: FakeService, port: int = 0) -> Iterator[FakeService]:
    """Serve on a loopback port; on leaving, the port is closed and every thread has ended."""

    class Handler(_Handler):
        state = service

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = False
    service.stopping = False
    service.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        with service.changed:
            service.stopping = True
            service.changed.notify_all()
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    state: FakeService
    protocol_version = "HTTP/1.1"
    timeout = 0.5

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: tests read `requests`."""

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_PUT = do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815 - names of http.server

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = urlsplit(self.path)
        query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.command, parts.path, query, headers, body)
        with self.state.changed:
            self.state.requests.append(seen)
            self.state.changed.notify_all()
        if self.state.faults:
            fault = self.state.faults.pop(0)
            if fault is None:
                self.close_connection = True
                return
            self._send(fault)
        elif "text/event-stream" in headers.get("accept", ""):
            self._stream(seen)
        else:
            self._send(_route(self.state, seen))

    def _send(self, reply: Reply) -> None:
        status, headers, content = reply
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _stream(self, seen: Seen) -> None:
        _, _, _, job_id, kind = seen.path.split("/")
        if job_id not in self.state.jobs:
            self._send(problem(404, "job_not_found", f"there is no job {job_id}"))
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.close_connection = True
        place = int(seen.headers.get("last-event-id") or seen.query.get("after") or 0)
        cut = self.state.breaks.pop(0) if self.state.breaks else None
        sent = 0
        with self.state.changed:
            while not self.state.stopping:
                items: list[Any] = getattr(self.state, kind)[job_id]
                for item in items[place:]:
                    frame = f"id: {item.seq}\nevent: {kind.rstrip('s')}\ndata: {item.model_dump_json()}\n\n".encode()
                    if cut is not None and sent >= cut:
                        self.wfile.write(frame[: len(frame) // 2])
                        return
                    self.wfile.write(frame)
                    sent += 1
                    place = item.seq
                if self.state.jobs[job_id].terminal:
                    self.wfile.write(b"event: end\ndata: {}\n\n")
                    return
                if cut is not None and sent >= cut:
                    return
                self.wfile.write(b": ping\n\n")
                self.state.changed.wait()


def _route(state: FakeService, seen: Seen) -> Reply:
    if seen.path == "/healthz":
        return 200, {}, b'{"status": "ok", "version": "0.1.0"}'
    if seen.path == "/v1/nodes":
        return _page(state, seen, state.nodes)
    if seen.path.startswith("/v1/nodes/") and seen.path.endswith("/events"):
        return _page(state, seen, state.node_events)
    if re.fullmatch(r"/v1/nodes/[^/]+", seen.path):
        (node,) = (one for one in state.nodes if seen.path.endswith(f"/{one.id}"))
        return 200, {}, node.model_dump_json().encode()
    if seen.path == "/v1/ledger":
        return 200, {}, state.cluster_ledger.model_dump_json().encode()
    if seen.path == "/v1/costs" and seen.query.get("format") == "focus":
        return 200, {}, b"BilledCost,x_Cause\n0.010000,failed\n"
    if seen.path == "/v1/costs":
        page = state.costs[int(seen.query.get("cursor", "0"))]
        return 200, {}, page.model_dump_json().encode()
    if seen.path == "/v1/goodput":
        assert state.goodput is not None
        return 200, {}, state.goodput.model_dump_json().encode()
    if seen.path == "/v1/pools":
        return _page(state, seen, state.pools)
    if seen.path == "/v1/projects":
        return _page(state, seen, state.projects)
    if seen.path == "/v1/ray-requests":
        return _page(state, seen, state.ray_requests)
    if match := re.fullmatch(r"/v1/pools/([^/]+)/reopen", seen.path):
        (pool,) = (one for one in state.pools if one.name == match[1])
        return 200, {}, pool.model_dump_json().encode()
    if seen.path == "/v1/prune":
        # There is more after the first request.
        is_first = sum(one.path == "/v1/prune" for one in state.requests) == 1
        return 200, {}, json.dumps({"jobs": 2, "nodes": 1, "rows": 7, "has_more": is_first}).encode()
    if seen.path.startswith("/v1/drills/") or seen.path.endswith("/drill"):
        found = state.drills.pop(0) if len(state.drills) > 1 else state.drills[0]
        return 200, {}, found.model_dump_json().encode()
    if match := re.fullmatch(r"/v1/bundles/(sha256:[0-9a-f]{64})", seen.path):
        known = match[1] in state.bundles
        if seen.method == "HEAD":
            return (200 if known else 404), {}, b""
        state.bundles[match[1]] = seen.body
        return 201, {}, b"{}"
    if seen.path == "/v1/models":
        return _page(state, seen, _models(state)[:1])
    if seen.path == "/v1/models/digits/versions":
        return _page(state, seen, _models(state))
    if match := re.fullmatch(r"/v1/models/digits/versions/\d+/files/(.*)", seen.path):
        return 200, {}, state.outputs[unquote(match[1])]
    if seen.path.startswith("/v1/schedules"):
        return _schedules(state, seen)
    if seen.path.startswith("/v1/arrays"):
        return _arrays(state, seen)
    if seen.path == "/v1/jobs":
        return _create(state, seen) if seen.method == "POST" else _newest(state, seen)
    parts = seen.path.split("/")
    job = state.jobs.get(parts[3]) if len(parts) > 3 else None
    if job is None:
        return problem(404, "job_not_found", f"there is no job {parts[-1]}", hint="See remora list.")
    return _of_job(state, seen, job, "/".join(parts[4:]))


def _schedules(state: FakeService, seen: Seen) -> Reply:
    if seen.method == "POST":
        spec = json.loads(seen.body)
        made = Schedule(
            id=f"sched_{len(state.schedules) + 1:026d}", name=spec["name"], project="default", spec=spec,
            cron=spec["schedule"]["cron"], zone=spec["schedule"]["zone"], next_at=2000.0, created_at=1000.0,
        )  # fmt: skip
        state.schedules[made.id] = made
        return 201, {}, made.model_dump_json().encode()
    if seen.path == "/v1/schedules":
        return _page(state, seen, list(state.schedules.values()))
    schedule_id, _, rest = seen.path.removeprefix("/v1/schedules/").partition("/")
    if schedule_id not in state.schedules:
        return problem(404, "schedule_not_found", "there is no such schedule")
    if rest == "runs":
        run = ScheduleRun(
            at=1500.0, decided_at=1501.0, outcome="submitted", message="submitted", job_id="job_x"
        )
        return _page(state, seen, [run])
    found = state.schedules[schedule_id]
    if seen.method == "DELETE":
        del state.schedules[schedule_id]
    return 200, {}, found.model_dump_json().encode()


def _arrays(state: FakeService, seen: Seen) -> Reply:
    if seen.method == "POST" and seen.path == "/v1/arrays":
        spec = json.loads(seen.body)
        values = list(Array.model_validate(spec["array"]).elements())
        made = JobArray(
            id=f"array_{len(state.arrays) + 1:026d}", name=spec["name"], project="default", spec=spec,
            size=len(values), jobs={"queued": len(values)}, created_at=1000.0,
        )  # fmt: skip
        state.arrays[made.id] = made
        for index, parameters in enumerate(values):
            element = ArrayElement(array_id=made.id, index=index, parameters=parameters)
            state.add_job(f"{made.name}-{index}", JobState.QUEUED, array=element)
        return 201, {}, made.model_dump_json().encode()
    if seen.path == "/v1/arrays":
        return _page(state, seen, list(reversed(state.arrays.values())))
    found = state.arrays.get(seen.path.split("/")[3])
    if found is None:
        return problem(404, "array_not_found", "there is no such array")
    return (202 if seen.path.endswith("/cancel") else 200), {}, found.model_dump_json().encode()


def _of_job(state: FakeService, seen: Seen, job: Job, rest: str) -> Reply:
    after = int(seen.query.get("after", 0))
    if rest == "" and seen.method == "DELETE":
        if not job.terminal:
            return problem(409, "not_changeable", "the job is running; cancel it first")
        return 202, {}, state.jobs.pop(job.id).model_dump_json().encode()
    if rest == "":
        if state.scenes:
            state.scenes.pop(0)(job)
        return 200, {}, state.jobs[job.id].model_dump_json().encode()
    if rest in ("pause", "resume"):
        if job.terminal:
            return problem(409, "not_changeable", "the job has ended already")
        became = JobState.PAUSED if rest == "pause" else JobState.QUEUED
        return 202, {}, state.change(job, state=became).model_dump_json().encode()
    if rest == "resize":
        workers = {**job.spec["workers"], **json.loads(seen.body)}
        return 202, {}, state.change(job, spec={**job.spec, "workers": workers}).model_dump_json().encode()
    if rest == "clone":
        values = json.loads(seen.body)["set"]
        return 201, {}, state.add_job(spec={**job.spec, **values}).model_dump_json().encode()
    if rest == "labels":
        labels = {**job.labels, **json.loads(seen.body)}
        labels = {name: value for name, value in labels.items() if value is not None}
        return 200, {}, state.change(job, labels=labels).model_dump_json().encode()
    if rest == "cancel":
        if job.terminal:
            return problem(409, "not_cancellable", "the job has ended", hint="Nothing is left to do.")
        return 202, {}, state.change(job, state=JobState.CANCELLED).model_dump_json().encode()
    if rest == "logs":
        lines = [one for one in state.logs[job.id] if str(one.rank) == seen.query.get("rank", str(one.rank))]
        return _page(state, seen, [one for one in _tail(seen, lines) if one.seq > after])
    if rest == "events":
        kinds = seen.query.get("kind", "").split(",")
        events = [one for one in state.events[job.id] if kinds == [""] or one.kind in kinds]
        return _page(state, seen, [one for one in _tail(seen, events) if one.seq > after])
    if rest == "phases":
        return _page(state, seen, state.phases)
    if rest == "metrics":
        first = int(seen.query.get("after_step", -1))
        return _page(state, seen, [one for one in state.metrics if one.step > first])
    if rest == "outputs":
        return _page(state, seen, _files(state))
    if rest.startswith("outputs/"):
        return 200, {}, state.outputs[unquote(rest.removeprefix("outputs/"))]
    if rest.startswith("profiles"):
        return _profiles(state, seen)
    if rest.startswith("shells"):
        return _shells(state, seen)
    if rest.endswith("/content"):
        return 200, {"Content-Type": "application/x-tar"}, state.archive
    return _page(state, seen, state.checkpoints if rest == "checkpoints" else state.attempts)


def _tail(seen: Seen, entries: list[EntryT]) -> list[EntryT]:
    return entries[-int(seen.query["tail"]) :] if "tail" in seen.query else entries


def _profiles(state: FakeService, seen: Seen) -> Reply:
    if seen.path.endswith("/content"):
        return 200, {"Content-Type": "application/gzip"}, state.trace
    if seen.method == "POST":
        return 202, {}, state.profiles[0][-1].model_dump_json().encode()
    found = state.profiles.pop(0) if len(state.profiles) > 1 else state.profiles[0]
    return _page(state, seen, found)


def _shells(state: FakeService, seen: Seen) -> Reply:
    if not state.exchanges:
        return problem(403, "shells_off", "shells are off in this service", hint="its operator turns them on")
    if not seen.path.endswith("/exchange"):
        state.closed += seen.method == "DELETE"
        return 201, {}, state.exchanges[0].shell.model_dump_json().encode()
    asked = json.loads(seen.body)
    if "seq" not in asked:
        found = state.exchanges.pop(0) if len(state.exchanges) > 1 else state.exchanges[0]
        return 200, {}, found.model_dump_json().encode()
    state.typed.append((asked["seq"], base64.b64decode(asked["data"])))
    kept = asked["seq"] if len(state.typed) > state.lost else asked["seq"] - 1
    answer = ShellExchange(shell=state.exchanges[0].shell, input_seq=kept, output=[])
    return 200, {}, answer.model_dump_json().encode()


def _files(state: FakeService) -> list[OutputFile]:
    return [
        OutputFile(name=name, size_bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in state.outputs.items()
    ]


def _models(state: FakeService) -> list[ModelVersion]:
    return [
        ModelVersion(
            name="digits",
            version=version,
            digest="sha256:" + "0" * 64,
            size_bytes=7,
            job_id="job_1",
            attempt=1,
            output="final",
            created_at=1.0,
            files=_files(state),
        )
        for version in range(state.versions, 0, -1)
    ]


def _create(state: FakeService, seen: Seen) -> Reply:
    key = seen.headers["idempotency-key"]
    if key in state.keys:
        body, job_id = state.keys[key]
        if body != seen.body:
            return problem(409, "idempotency_key_reused", "the key belongs to another job")
        return 201, {"Idempotency-Replayed": "true"}, state.jobs[job_id].model_dump_json().encode()
    spec = json.loads(seen.body)
    job = state.add_job(spec["name"], JobState.QUEUED, spec=spec)
    state.keys[key] = (seen.body, job.id)
    return 201, {"Location": f"/v1/jobs/{job.id}"}, job.model_dump_json().encode()


def _newest(state: FakeService, seen: Seen) -> Reply:
    jobs = sorted(state.jobs.values(), key=lambda job: job.created_at, reverse=True)
    return _page(state, seen, [job for job in jobs if job.state == seen.query.get("state", job.state)])


def _page(state: FakeService, seen: Seen, items: list[Any]) -> Reply:
    start = int(seen.query.get("cursor", 0))
    size = min(int(seen.query.get("limit", state.page_limit)), state.page_limit)
    more = str(start + size) if start + size < len(items) else None
    page: Page[View] = Page(items=items[start : start + size], next_cursor=more)
    return 200, {}, page.model_dump_json(serialize_as_any=True).encode()
