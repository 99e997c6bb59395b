"""`remora policy ...` and both clients against a real service."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

import remora
from remora.cli.exits import ExitCode
from remora.errors import Conflict, Invalid, NotFound
from service.api.app import create_app
from service.settings import Settings
from tests.command_line import Cli

FIRST = "pools:\n  local: {sizes: [local], capacity: on-demand, min_nodes: 1, max_nodes: 4}\n"
SECOND = FIRST.replace("max_nodes: 4", "max_nodes: 5")


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a service that the command line finds by itself."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    app = create_app(Settings(home=tmp_path / "home", nodes=2))
    server = uvicorn.Server(uvicorn.Config(app, log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    monkeypatch.setenv("REMORA_SERVER", url)
    monkeypatch.chdir(tmp_path)
    yield url
    server.should_exit = True
    thread.join()
    listening.close()


@pytest.fixture
def policy(capsys: pytest.CaptureFixture[str], service: str) -> Cli:
    return Cli(capsys, "policy")


def test_from_the_first_look_to_a_rollback(policy: Cli) -> None:
    assert policy("show") == ExitCode.OK
    assert "min_nodes: 2" in policy.out
    Path("new.yaml").write_text(FIRST)
    assert policy("check", "new.yaml") == ExitCode.OK
    assert policy.out == "It can be applied.\n"

    assert policy("apply", "new.yaml", "--yes", "-m", "more nodes") == ExitCode.OK
    assert "-    min_nodes: 2\n" in policy.out
    assert "+  local: {sizes: [local], capacity: on-demand, min_nodes: 1, max_nodes: 4}\n" in policy.out
    assert policy.out.endswith("Version 1 is in force.\n")
    assert policy("check", "new.yaml") == ExitCode.OK
    assert policy.out == "It is in force already.\n"
    assert policy("apply", "new.yaml") == ExitCode.OK
    assert policy.out == "Version 1 is in force already.\n"

    Path("new.yaml").write_text(SECOND)
    assert policy("apply", "new.yaml", "--yes", "--json") == ExitCode.OK
    assert (policy.json["version"], policy.json["document"]) == (2, SECOND)
    assert policy("show", "1") == ExitCode.OK
    assert policy.out == FIRST

    assert policy("rollback", "-y") == ExitCode.OK
    assert "-  local: {sizes: [local], capacity: on-demand, min_nodes: 1, max_nodes: 5}\n" in policy.out
    assert policy.out.endswith("Version 3 is in force, with the document of version 1.\n")
    assert policy("rollback", "1", "-y") == ExitCode.OK
    assert policy.out == "Version 3 says the same as version 1 already.\n"
    assert policy("history") == ExitCode.OK
    rows = policy.out.splitlines()[1:]
    assert [row.split()[0] for row in rows] == ["3", "2", "1", "0"]
    assert "rollback to 1." in rows[0]
    assert "more nodes" in rows[2]
    assert "made from the settings" in rows[3]


def test_what_is_wrong_is_said_with_its_lines(policy: Cli) -> None:
    Path("new.yaml").write_text(
        "pools:\n  local:\n    sizes: [local]\n    min_node: 3\n  b: {sizes: [local], max_node: 2}\n"
    )
    for command in (["check", "new.yaml"], ["apply", "new.yaml", "--yes"]):
        assert policy(*command) == ExitCode.USAGE
        assert policy.out == ""
        assert policy.err.splitlines() == [
            "remora: line 4: pools.local.min_node: unknown key; did you mean min_nodes?",
            "remora: line 5: pools.b.max_node: unknown key; did you mean max_nodes?",
        ]
    assert policy("check", "new.yaml", "--json") == ExitCode.USAGE
    assert [one["lines"] for one in policy.json["problems"]] == [[4], [5]]


def test_nothing_is_applied_without_a_yes(policy: Cli) -> None:
    Path("new.yaml").write_text(FIRST)
    assert policy("apply", "new.yaml") == ExitCode.USAGE
    assert "add --yes" in policy.err
    assert policy("show", "--json") == ExitCode.OK
    assert policy.json["version"] == 0


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["apply", "missing.yaml"], ExitCode.USAGE, "cannot read missing.yaml: No such file"),
        (["check", "."], ExitCode.USAGE, "cannot read .: Is a directory"),
        (["check", "bytes.yaml"], ExitCode.USAGE, "bytes.yaml is not text in UTF-8"),
        (["show", "7"], ExitCode.NOT_FOUND, "there is no version '7' of the policies"),
        (["rollback", "--yes"], ExitCode.NOT_FOUND, "there is no version before 0"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(
    policy: Cli, arguments: list[str], code: ExitCode, said: str
) -> None:
    Path("bytes.yaml").write_bytes(b"\xff\xfe")
    assert policy(*arguments) == code
    assert said in policy.err
    assert policy.err.count("\n") == 1


def test_the_client_names_who_was_faster_and_what_is_wrong(service: str) -> None:
    with remora.Client() as client:
        assert client.policy().version == 0
        assert client.apply_policy(FIRST, based_on=0, author="ada").author == "ada"
        with pytest.raises(Conflict, match="at version 1, and this change was made to version 0"):
            client.apply_policy(SECOND, based_on=0)
        with pytest.raises(Invalid, match=r"\(line 1\): unknown key; did you mean pools\?"):
            client.apply_policy("pool: {}", based_on=1)
        with pytest.raises(NotFound):
            client.policy(9)
        assert [one.kind for one in client.cluster_events()] == ["policies.applied"]


def test_the_asynchronous_client_has_the_same_calls(service: str) -> None:
    async def story() -> None:
        async with remora.AsyncClient() as client:
            assert (await client.check_policy(FIRST)).problems == []
            await client.apply_policy(FIRST, based_on=0)
            second = await client.roll_back_policy(0, based_on=1, comment="too much")
            assert (second.restores, second.comment) == (0, "too much")
            assert [one.version for one in await client.policy_versions()] == [2, 1, 0]
            assert (await client.policy(1)).document == FIRST
            assert len(await client.cluster_events(after=1)) == 1

    asyncio.run(story())
