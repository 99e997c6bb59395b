"""The processes themselves: streams over real connections, signals, kills, and refusals to start."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from examples.openid_issuer import make_certificate
from remora import Client
from remora.states import JobState
from service.api import streams
from service.api.context import Context
from service.api.feed import Feed
from service.api.prometheus import Telemetry
from service.api.sse import PING
from service.clouds.fixed_pool import LocalSupply
from service.controller.connecting import ClusterConnection
from service.controller.controller import Process
from service.queue import lifecycle
from service.settings import Settings
from service.store import job_history, jobs, leases
from service.store.database import Database
from service.store.ids import new_id
from service.store.ingest import ingest
from service.store.migrate import migrate
from tests.service_fakes import FakeCluster, FakeLauncher, hold_lease, job_row, records
from trainers.storage import Storage

ROOT = Path(__file__).parents[3]
SPEC = {"command": "python train.py"}


def wait_for(what: str, is_so: Callable[[], Any], timeout_s: float = 30.0) -> Any:
    """Look until it is so; fails with what was waited for."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        found = is_so()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError(f"{what}: not within {timeout_s} s")


@dataclass
class Api:
    """A running API process."""

    process: subprocess.Popen[bytes]
    url: str
    log: Path

    def stop(self, sign: int = signal.SIGTERM) -> int:
        self.process.send_signal(sign)
        return self.process.wait(timeout=20)


def environment(home: Path, **settings: str) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("REMORA_")}
    return {**inherited, "PYTHONPATH": str(ROOT), "REMORA_HOME": str(home), **settings}


@contextmanager
def running_api(home: Path, port: int = 0, trusting: Any = True, **settings: str) -> Iterator[Api]:
    home.mkdir(exist_ok=True)
    address = home / "api.url"
    address.unlink(missing_ok=True)
    log = home / "api.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "service.api_process", "--port", str(port)],
            env=environment(home, **settings),
            stderr=output,
            stdout=output,
            start_new_session=True,
        )
    try:
        wait_for("the API listens", lambda: address.exists() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        url = address.read_text().strip()
        wait_for("the API answers", lambda: httpx2.get(f"{url}/healthz", verify=trusting).status_code == 200)
        yield Api(process, url, log)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def api(home: Path) -> Iterator[Api]:
    with running_api(home) as started:
        yield started
        if started.process.poll() is None:
            assert started.stop() == 0
        log = started.log.read_text()
        assert "Traceback" not in log, log
        assert not (home / "api.url").exists()


@pytest.fixture
def controller_side(home: Path, api: Api) -> Iterator[Database]:
    """The database as another process has it."""
    database = Database(Settings(home=home).database)
    yield database
    database.close()


def test_a_home_is_its_own_users(home: Path) -> None:
    """Also what an earlier version made readable for all, and what SQLite puts beside its file."""
    (home / "logs").mkdir(parents=True)
    Database(Settings(home=home).database).close()
    for folder in (home, home / "logs"):
        folder.chmod(0o755)
    for file in (home / "remora.db", home / "logs" / "api.log", home / "ray.address"):
        file.touch()
        file.chmod(0o644)
    elsewhere = home.with_name("elsewhere")
    elsewhere.mkdir()
    elsewhere.chmod(0o755)
    (home / "storage").symlink_to(elsewhere)
    with running_api(home) as api:
        submit(api)
        modes = {str(path.relative_to(home)): path.lstat().st_mode for path in home.rglob("*")}
        assert {"remora.db", "remora.db-wal", "remora.db-shm", "logs/api.log", "ray.address"} <= modes.keys()
        open_to_others = {name for name, mode in modes.items() if mode & 0o077} - {
            "storage",
            "api.url",
            "api.log",
        }
        assert not open_to_others
        assert home.stat().st_mode & 0o777 == 0o700
    assert elsewhere.stat().st_mode & 0o777 == 0o755


def submit(api: Api) -> str:
    answer = httpx2.post(f"{api.url}/v1/jobs", json=SPEC)
    assert answer.status_code == 201
    return str(answer.json()["id"])


class Attempt:
    """One attempt of a job, as its driver reports it to the store."""

    def __init__(self, database: Database, job_id: str) -> None:
        self._database = database
        self._seq = 0

        def start(connection: sa.Connection) -> str:
            job = jobs.lock_job(connection, job_id)
            assert job is not None
            decision = lifecycle.start_attempt(job, new_id("att", 1000.0), 1000.0)
            jobs.save(connection, job, decision)
            assert decision.attempt is not None
            return decision.attempt.id

        self._id = database.transact(start)

    def report(self, *kinds_and_bodies: tuple[str, dict[str, Any]]) -> None:
        def work(connection: sa.Connection) -> None:
            ingest(
                connection,
                hold_lease(connection),
                self._id,
                records(*kinds_and_bodies, first=self._seq + 1),
                1002.0,
            )

        self._database.transact(work)
        self._seq += len(kinds_and_bodies)

    def say(self, first: int, last: int) -> None:
        lines = [
            ("log", {"rank": n % 2, "stream": "stdout", "text": f"line {n}"}) for n in range(first, last + 1)
        ]
        self.report(*lines)

    def end(self) -> None:
        self.report(("ended", {"end_reason": "completed", "message": "done", "exit_code": 0}))


@dataclass(frozen=True)
class Frame:
    kind: str
    identity: int | None
    data: str


def follow(url: str, last: int | None = None) -> Iterator[Frame]:
    """Frames of a stream until it ends or breaks."""
    headers = {"Accept": "text/event-stream"} | ({} if last is None else {"Last-Event-ID": str(last)})
    with httpx2.stream("GET", url, headers=headers, timeout=30.0) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream"), answer.read()
        fields: dict[str, str] = {}
        for line in answer.iter_lines():
            if line and not line.startswith(":"):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif not line and "event" in fields:
                identity = int(fields["id"]) if "id" in fields else None
                yield Frame(fields["event"], identity, fields["data"])
                fields = {}


class TestStreams:
    def test_news_come_while_they_happen_and_the_end_is_reported(
        self, api: Api, controller_side: Database
    ) -> None:
        job_id = submit(api)
        frames: list[Frame] = []

        def listen() -> None:
            frames.extend(follow(f"{api.url}/v1/jobs/{job_id}/events"))

        listener = threading.Thread(target=listen)
        listener.start()
        attempt = Attempt(controller_side, job_id)
        attempt.report(("progress", {"state": "running", "world_size": 1}))
        attempt.end()
        listener.join(20)
        assert not listener.is_alive(), "the stream ends by itself"
        assert [frame.identity for frame in frames[:-1]] == list(range(1, len(frames)))
        assert (frames[-1].kind, frames[-1].identity) == ("end", None)
        assert "job.succeeded" in frames[-2].data

    def test_logs_are_resumed_by_the_last_id_without_gap_or_double(
        self, api: Api, controller_side: Database
    ) -> None:
        job_id = submit(api)
        attempt = Attempt(controller_side, job_id)
        attempt.say(1, 1200)
        url = f"{api.url}/v1/jobs/{job_id}/logs"
        seen: list[int] = []
        for frame in follow(url):
            assert frame.identity is not None
            seen.append(frame.identity)
            if len(seen) == 700:
                break
        attempt.say(1201, 1300)
        attempt.end()
        rest = list(follow(url, seen[-1]))
        seen += [frame.identity for frame in rest if frame.identity is not None]
        assert seen == list(range(1, 1301))
        assert rest[-1].kind == "end"

    def test_a_filtered_stream_ends_too(self, api: Api, controller_side: Database) -> None:
        job_id = submit(api)
        attempt = Attempt(controller_side, job_id)
        attempt.say(1, 20)
        attempt.end()
        frames = list(follow(f"{api.url}/v1/jobs/{job_id}/logs?rank=1&tail=3"))
        assert [frame.identity for frame in frames] == [15, 17, 19, None]
        assert [frame.kind for frame in follow(f"{api.url}/v1/jobs/{job_id}/logs?rank=7")] == ["end"]

    def test_a_service_that_is_killed_in_mid_stream_is_resumed(self, home: Path) -> None:
        seen: list[int] = []
        with running_api(home) as first:
            job_id = submit(first)
            database = Database(Settings(home=home).database)
            attempt = Attempt(database, job_id)
            attempt.say(1, 600)

            def listen_and_kill() -> None:
                for frame in follow(f"{first.url}/v1/jobs/{job_id}/logs"):
                    assert frame.identity is not None
                    seen.append(frame.identity)
                    if len(seen) == 600:
                        os.killpg(first.process.pid, signal.SIGKILL)

            with pytest.raises(httpx2.HTTPError):
                listen_and_kill()
        attempt.say(601, 900)
        attempt.end()
        database.close()
        with running_api(home, int(first.url.rsplit(":", 1)[1])) as second:
            assert second.url == first.url
            for frame in follow(f"{second.url}/v1/jobs/{job_id}/logs", seen[-1]):
                if frame.identity is not None:
                    seen.append(frame.identity)
            assert second.stop() == 0
        assert seen == list(range(1, 901))

    def test_the_process_ends_at_once_although_streams_are_open(self, api: Api) -> None:
        job_id = submit(api)
        opened = threading.Barrier(4)
        ends: list[bool] = []

        def listen() -> None:
            for number, _ in enumerate(follow(f"{api.url}/v1/jobs/{job_id}/events")):
                if number == 0:
                    opened.wait(20)
            ends.append(True)

        listeners = [threading.Thread(target=listen) for _ in range(3)]
        for listener in listeners:
            listener.start()
        opened.wait(20)
        assert api.stop() == 0, "open streams do not hold it"
        for listener in listeners:
            listener.join(10)
        assert ends == [True] * 3

    def test_clients_that_vanish_leave_no_trace(self, api: Api, controller_side: Database) -> None:
        job_id = submit(api)
        attempt = Attempt(controller_side, job_id)
        host, port = api.url.removeprefix("http://").split(":")
        for _ in range(5):
            with socket.create_connection((host, int(port))) as client:
                request = f"GET /v1/jobs/{job_id}/logs HTTP/1.1\r\nHost: {host}\r\nAccept: text/event-stream\r\n\r\n"
                client.sendall(request.encode())
                client.recv(64)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        attempt.say(1, 2000)
        attempt.end()
        assert list(follow(f"{api.url}/v1/jobs/{job_id}/logs"))[-1].kind == "end"


def test_an_idle_stream_shows_that_it_lives(
    home: Path, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "PING_S", 0.05)
    row = job_row()
    database.transact(lambda connection: jobs.insert_job(connection, lifecycle.submit(row)))

    async def second_frame() -> bytes:
        feed = Feed(database)
        looking = asyncio.create_task(feed.run())
        context = Context(Settings(home=home), database, Storage(home), feed, Telemetry())

        async def read(after: int, limit: int) -> list[Any]:
            return await database.read(lambda c: job_history.page_of_events(c, row.id, after, limit))

        frames = streams._frames(context, row.id, "event", 0, read, lambda position: position.event_seq, None)
        assert b"job.queued" in await anext(frames)
        ping = await anext(frames)
        await frames.aclose()
        looking.cancel()
        return ping

    assert asyncio.run(second_frame()) == PING


#: None of these is a request that can be granted; one process is sent all of them, each over its own connection.
WILD_BYTES = (
    b"GET /v1/jobs/\xff\xfe HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/jobs?project=\xff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /%00%ff HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /v1/jobs HTTP/1.1\r\n\r\n",
    b"GET /v1/jobs HTTP/1.1\r\nHost: [::1\r\n\r\n",
    b"GET /v1/jobs HTTP/1.1\r\nHost: localhost\r\nOrigin: http://[x\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n",
    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: \xff\r\nContent-Length: 0\r\n\r\n",
    b"BREW /v1/jobs HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
)


def status_of(api: Api, raw: bytes) -> int:
    """The status of the answer to these bytes."""
    host, port = api.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as client:
        client.sendall(raw)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        return answer.status


class TestWildRequests:
    def test_a_body_of_100_mb_is_refused(self, api: Api) -> None:
        def body() -> Iterator[bytes]:
            for _ in range(100):
                yield b" " * 2**20

        headers = {"Content-Type": "application/json"}
        answer = httpx2.post(f"{api.url}/v1/jobs", content=body(), headers=headers, timeout=30.0)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")
        answer = httpx2.post(f"{api.url}/v1/jobs", content=b" " * 100 * 2**20, headers=headers, timeout=30.0)
        assert (answer.status_code, answer.json()["code"]) == (413, "too_large")

    def test_raw_bytes_are_answered_with_4xx(self, api: Api) -> None:
        answers = {raw: status_of(api, raw) for raw in WILD_BYTES}
        assert {raw: status for raw, status in answers.items() if not 400 <= status < 500} == {}

    def test_a_client_that_leaves_in_the_middle_of_its_body(self, api: Api) -> None:
        host, port = api.url.removeprefix("http://").split(":")
        digest = "sha256:" + "0" * 64
        for head in ("POST /v1/jobs", f"PUT /v1/bundles/{digest}"):
            with socket.create_connection((host, int(port))) as client:
                start = f"{head} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
                client.sendall(f"{start}Content-Length: 1000\r\n\r\nhalf".encode())
        assert httpx2.get(f"{api.url}/healthz").status_code == 200


class TestTls:
    @pytest.fixture
    def certificate(self, tmp_path: Path) -> tuple[Path, Path]:
        return make_certificate(tmp_path)

    def test_it_is_reached_over_tls_and_by_its_public_name(
        self, home: Path, certificate: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate[0]))
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        files = {"REMORA_TLS_CERTIFICATE": str(certificate[0]), "REMORA_TLS_KEY": str(certificate[1])}
        with running_api(home, trusting=trusting, **files) as api, Client(api.url) as client:
            assert api.url.startswith("https://127.0.0.1:")
            assert client.submit(SPEC).id.startswith("job_")
            plain = api.url.replace("https", "http")
            with pytest.raises(httpx2.TransportError):
                httpx2.get(f"{plain}/healthz")
            foreign = {"Origin": plain}
            assert httpx2.get(f"{api.url}/v1/jobs", verify=trusting, headers=foreign).status_code == 403
            named = {"Host": "remora.example.com"}
            assert httpx2.get(f"{api.url}/healthz", verify=trusting, headers=named).status_code == 421

    def test_a_certificate_that_cannot_be_used_is_one_sentence(
        self, home: Path, certificate: tuple[Path, Path]
    ) -> None:
        words = ["-m", "service.api_process", "--port", "0"]
        swapped = {"REMORA_TLS_CERTIFICATE": str(certificate[1]), "REMORA_TLS_KEY": str(certificate[0])}
        done = subprocess.run(
            [sys.executable, *words],
            env=environment(home, **swapped),
            capture_output=True,
            timeout=60,
            text=True,
        )
        assert done.returncode == 2
        assert "cannot be used" in done.stderr
        assert len(done.stderr.splitlines()) == 1


class TestStarting:
    def start(
        self, home: Path, *words: str, module: str = "service.api_process", **settings: str
    ) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", module, *words],
            env=environment(home, **settings),
            capture_output=True,
            timeout=60,
            text=True,
        )
        return done.returncode, done.stderr

    def test_it_refuses_to_be_reached_from_outside(self, home: Path) -> None:
        code, said = self.start(home, "--port", "0", "--host", "0.0.0.0")
        assert code == 2
        assert "set REMORA_AUTHENTICATION=required" in said
        assert len(said.splitlines()) == 1

    def test_a_taken_port_is_one_sentence(self, home: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            code, said = self.start(home, "--port", str(taken.getsockname()[1]))
        assert code == 1
        assert "Address already in use" in said
        assert len(said.splitlines()) == 1

    @pytest.mark.parametrize("module", ["service.api_process", "service.controller"])
    def test_bad_settings_are_named(self, home: Path, module: str) -> None:
        code, said = self.start(home, module=module, REMORA_TICK_S="soon")
        assert code == 2
        assert "tick_s" in said
        assert len(said.splitlines()) == 1

    @pytest.mark.parametrize("module", ["service.api_process", "service.controller"])
    def test_a_database_that_is_not_there_is_one_sentence(self, home: Path, module: str) -> None:
        url = "postgresql://nobody@127.0.0.1:1/nothing"
        code, said = self.start(home, module=module, REMORA_DATABASE_URL=url)
        assert code == 1
        assert "the database does not answer" in said
        assert len(said.splitlines()) == 1


class TestLog:
    def test_a_request_is_a_line_of_json_without_its_parameters(self, home: Path) -> None:
        settings = {"REMORA_LOG_FORMAT": "json", "REMORA_ACCESS_LOG": "true"}
        with running_api(home, **settings) as started:
            url = f"{started.url}/v1/jobs/job_01KBC0000000000000000000AA/events?code=hunter22"
            httpx2.get(url, headers={"X-Request-ID": "asked-1"})
            assert started.stop() == 0
        text = started.log.read_text()
        assert "hunter22" not in text
        lines = [json.loads(line) for line in text.splitlines()]
        assert {line["process"] for line in lines} == {"api"}
        (one,) = [line for line in lines if line.get("request") == "asked-1"]
        assert one["logger"] == "uvicorn.access"
        assert (one["method"], one["path"], one["status"]) == (
            "GET",
            "/v1/jobs/job_01KBC0000000000000000000AA/events",
            422,
        )
        assert one["job"] == "job_01KBC0000000000000000000AA"

    def test_requests_are_not_logged_unless_that_is_asked_for(self, api: Api) -> None:
        httpx2.get(f"{api.url}/v1/jobs")
        assert api.stop() == 0
        assert "/v1/jobs" not in api.log.read_text()


class TestControllerProcess:
    @pytest.mark.parametrize(
        ("head", "said", "more"),
        [
            ("", "no Ray head is known", {}),
            ("127.0.0.1:1", "trying again: there is no file", {"REMORA_CLOUD": "azure"}),
        ],
    )
    def test_it_waits_for_what_it_needs_and_ends_on_a_signal(
        self, home: Path, head: str, said: str, more: dict[str, str]
    ) -> None:
        home.mkdir()
        (home / "ray.address").write_text(head)
        log = home / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "service.controller", "--log-format", "json"],
                env=environment(home, **more),
                stderr=output,
                start_new_session=True,
            )
        try:
            wait_for("it says what it waits for", lambda: said in log.read_text())
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        assert len(log.read_text().splitlines()) == 1

    def test_it_goes_on_after_the_head_moved(self, home: Path) -> None:
        """An unreachable head is tried again; a new address gets a new connection."""
        settings = Settings(home=home, tick_s=0.01)
        database = Database(settings.database)
        migrate(database)
        addresses: list[str] = []
        closed: list[str] = []
        fakes = FakeCluster()

        def connect(_: Settings, address: str) -> ClusterConnection:
            addresses.append(address)
            if addresses == ["first:1"]:
                raise ConnectionError("no server is there\nlong story")
            supply = LocalSupply(settings)
            return ClusterConnection(
                FakeLauncher(), fakes, fakes, supply, fakes, close=lambda: closed.append(address)
            )

        (home / "ray.address").write_text("first:1\n")
        process = Process(settings, database, connect)
        thread = threading.Thread(target=process.run)
        thread.start()
        try:
            wait_for("a second try", lambda: addresses == ["first:1", "first:1"])
            row = job_row(time.time())
            database.transact(lambda connection: jobs.insert_job(connection, lifecycle.submit(row)))

            def is_admitted() -> bool:
                job = database.query(lambda connection: jobs.get_job(connection, row.id))
                return job is not None and job.state is JobState.ADMITTED

            wait_for("the job is admitted", is_admitted)
            (home / "ray.address").write_text("second:2\n")
            wait_for("a new connection", lambda: addresses[-1] == "second:2")
            wait_for("the end of the old one", lambda: closed == ["first:1"])
        finally:
            process.stopping.set()
            thread.join(20)
        assert closed == ["first:1", "second:2"]
        lease = database.query(lambda connection: leases.get(connection, "controller"))
        assert lease is not None
        assert (lease.is_free, lease.token) == (True, 1), "the next one is let in at once"
        database.close()
