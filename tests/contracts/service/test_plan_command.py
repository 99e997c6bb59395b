"""`remora plan` and both clients against a real service."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import uvicorn

import remora
from remora.cli import plans
from remora.cli.exits import ExitCode
from remora.cli.main import run
from service.api import replays
from service.api.app import create_app
from service.api.replays import Replays
from service.settings import Settings
from tests.contracts.service import endless_plan

EXAMPLES = Path(__file__).parents[3] / "examples" / "what-if"
TRACE, SPOT, ON_DEMAND = (
    str(EXAMPLES / name) for name in ("trace.jsonl", "prefer-spot.yaml", "on-demand.yaml")
)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a service that the command line finds by itself."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    server = uvicorn.Server(uvicorn.Config(create_app(Settings(home=tmp_path / "home")), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    monkeypatch.setenv("REMORA_SERVER", url)
    yield url
    server.should_exit = True
    thread.join()
    listening.close()


def plan(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        run(["plan", *arguments])
    return int(ended.value.code or 0)


def test_what_a_service_has_not_done_yet_is_an_empty_trace(
    service: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "trace.jsonl"
    for options in ((), ("-o", str(file)), ("--since", "soon")):
        with pytest.raises(SystemExit) as ended:
            run(["trace", "export", *options])
        out, err = capsys.readouterr()
        if options[:1] == ("--since",):
            assert ended.value.code == ExitCode.USAGE
            assert "--since soon" in err
        else:
            assert ended.value.code == ExitCode.OK
            assert err == "0 jobs of the last 30d\n"
            assert json.loads((out or file.read_text()).splitlines()[0])["kind"] == "world"


def test_two_policies_stand_side_by_side(
    service: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    picture = tmp_path / "plan.svg"
    options = ("--trace", TRACE, "--policy", SPOT, "--against", ON_DEMAND, "--plot", str(picture))
    assert plan(*options) == ExitCode.OK
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert lines[0] == ["PREFER-SPOT.YAML", "ON-DEMAND.YAML", "CHANGE"]
    assert lines[1][0] == "cost"
    assert lines[1][-1].startswith("-")
    assert err == ""
    assert picture.read_text().startswith("<svg")


def test_the_table_says_how_often_a_project_spent_more_than_it_may(
    service: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lines = [json.loads(line) for line in Path(TRACE).read_text().splitlines()]
    project = next(line["project"] for line in lines if line["kind"] == "job")
    limited = tmp_path / "limited.yaml"
    limited.write_text(f"{Path(SPOT).read_text()}\nprojects: {{{project}: {{usd_per_month: 1}}}}\n")
    assert plan("--trace", TRACE, "--policy", str(limited), "--against", SPOT) == ExitCode.OK
    table = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["budget", "violations", "0", "0", "="] in table
    assert ["of", "projects", "1", "0", "+1"] in table


def test_the_clients_say_the_same(service: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert plan("--trace", TRACE, "--policy", SPOT, "--seed", "2", "--json") == ExitCode.OK
    printed = json.loads(capsys.readouterr().out)["reports"]
    reported: list[float] = []
    with remora.Client() as client:
        assert [one.model_dump() for one in client.what_if([TRACE], [SPOT], seed=2).reports] == printed

    async def ask() -> None:
        async with remora.AsyncClient() as other:
            answer = await other.what_if([TRACE], [SPOT], seed=2, on_progress=reported.append)
            assert [one.model_dump() for one in answer.reports] == printed

    asyncio.run(ask())
    assert reported[-1] == 1.0


@pytest.fixture
def endless(tmp_path: Path) -> tuple[str, str]:
    """Files of a trace and a policy whose replay takes minutes."""
    trace, policy = tmp_path / "endless.jsonl", tmp_path / "endless.yaml"
    trace.write_text(endless_plan.TRACE)
    policy.write_text(endless_plan.POLICY)
    return str(trace), str(policy)


def test_ctrl_c_ends_the_replay_and_the_next_one_begins_at_once(
    service: str,
    endless: tuple[str, str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def press(_part: float) -> None:
        raise KeyboardInterrupt

    trace, policy = endless
    monkeypatch.setattr(plans, "_progress", lambda: press)
    assert plan("--trace", trace, "--policy", policy) == ExitCode.DETACHED
    assert capsys.readouterr().err == "\nCancelled; the replay has ended.\n"
    monkeypatch.undo()
    with remora.Client(service, retry_s=0) as client:
        assert client.what_if([TRACE], [SPOT]).state == "done"


def test_a_task_that_is_cancelled_ends_its_replay(service: str, endless: tuple[str, str]) -> None:
    async def ask() -> None:
        runs = asyncio.Event()
        async with remora.AsyncClient(retry_s=0) as client:
            trace, policy = endless
            task = asyncio.create_task(
                client.what_if([trace], [policy], on_progress=lambda _part: runs.set())
            )
            await runs.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await client.what_if([TRACE], [SPOT])).state == "done"

    asyncio.run(ask())


def test_a_replay_whose_client_has_gone_before_it_knew_of_it_ends(
    service: str, endless: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = processes_of_replays(monkeypatch)
    trace, policy = (Path(name) for name in endless)
    asked = {
        "traces": [{"name": trace.name, "text": trace.read_text()}],
        "policies": [{"name": policy.name, "text": policy.read_text()}],
    }
    with pytest.raises(httpx2.ReadTimeout):  # a process of its own cannot have begun by then
        httpx2.post(f"{service}/v1/plans", json=asked, timeout=httpx2.Timeout(30.0, read=0.01))
    asked["policies"][0]["text"] = ""
    deadline = time.monotonic() + 60
    # Once it is out of the way a question is looked at again: this one is refused, as it names no pool.
    while (answer := httpx2.post(f"{service}/v1/plans", json=asked)).status_code == 429:
        assert time.monotonic() < deadline, "no signal ended it"
    assert answer.status_code == 422
    assert begun[0].returncode == -signal.SIGKILL


@pytest.mark.parametrize("ends", ["cancel", "close"])
def test_a_replay_that_is_ended_before_anybody_followed_it_leaves_no_process(
    endless: tuple[str, str], monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    begun = processes_of_replays(monkeypatch)

    async def start_and_end() -> None:
        mine = Replays()
        view = await mine.start(question(endless))
        await (mine.cancel(view.id) if ends == "cancel" else mine.close())

    asyncio.run(start_and_end())
    assert [process.returncode for process in begun] == [-signal.SIGKILL]


def question(files: tuple[str, str]) -> bytes:
    """The body that asks for a replay of these files."""
    trace, policy = ({"name": name, "text": Path(name).read_text()} for name in files)
    return json.dumps({"traces": [trace], "policies": [policy]}).encode()


def processes_of_replays(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.subprocess.Process]:
    """The processes that replays begin from now on, oldest first."""
    begun: list[asyncio.subprocess.Process] = []

    async def begin() -> asyncio.subprocess.Process:
        begun.append(await begin_it())
        return begun[-1]

    begin_it = replays._process
    monkeypatch.setattr(replays, "_process", begin)
    return begun


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--trace", "missing.jsonl", "--policy", SPOT), "cannot read missing.jsonl: No such file"),
        (("--trace", SPOT, "--policy", SPOT), "prefer-spot.yaml, line 1: Invalid JSON"),
        (("--trace", TRACE, "--policy", TRACE), "trace.jsonl: "),
        (("--trace", f"x={TRACE}", "--policy", SPOT), "trace.jsonl: "),
    ],
)
def test_bad_input_is_one_line(
    service: str, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert plan(*arguments) == ExitCode.USAGE
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
