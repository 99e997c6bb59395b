"""Shells of running jobs, on both databases: who may, what moves, and that each one ends."""

from __future__ import annotations

import base64
import hashlib
import shlex
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.states import EndReason, JobState
from remora.views import ShellExchange, ShellSession
from service.queue.shells import (
    AWAY_S,
    IDLE_S,
    MOST_OPEN,
    MOST_WAITING,
    OPENED_WITHIN_S,
    READ_WITHIN_S,
    WHOLE_S,
)
from service.store import audit
from service.store import shells as store
from service.store.database import Database
from service.store.tables import jobs, shell_pieces
from tests.contracts.service.owners import Owner, owner_of
from tests.contracts.service.two_projects import two_projects
from tests.service_fakes import FakeShell
from trainers.plan import DriverGone
from trainers.shells import CHUNK_BYTES, STDERR, UNREAD_BYTES

pytestmark = pytest.mark.postgresql_in_soak


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path, shells=True) as made:
        yield made


def opened(owner: Owner, **asked: Any) -> tuple[str, FakeShell]:
    """A job that trains, and its first shell as its driver has it."""
    job_id = owner.submit()
    owner.train(job_id)
    owner.ask(job_id, "shells", status=201, **{"rank": 0, **asked})
    owner.world.tick()
    return job_id, the_shell(owner)


def the_shell(owner: Owner, number: int = 1) -> FakeShell:
    (found,) = [shell for (_, one), shell in owner.world.shells.open.items() if one == number]
    return found


def exchange(owner: Owner, job_id: str, data: bytes | None = None, **said: Any) -> ShellExchange:
    if data is not None:
        said["data"] = base64.b64encode(data).decode()
    answer = owner.client.post(f"/v1/jobs/{job_id}/shells/1/exchange", json=said)
    assert answer.status_code == 200, answer.text
    return ShellExchange.model_validate_json(answer.content)


def printed(found: ShellExchange) -> list[tuple[int, str, bytes]]:
    return [(one.seq, one.stream, base64.b64decode(one.data)) for one in found.output]


def listed(owner: Owner, job_id: str) -> list[ShellSession]:
    return [
        ShellSession.model_validate(one)
        for one in owner.client.get(f"/v1/jobs/{job_id}/shells").json()["items"]
    ]


def kept_chunks(owner: Owner) -> int:
    count = sa.select(sa.func.count()).select_from(shell_pieces)
    return owner.world.database.query(lambda c: int(c.execute(count).scalar_one()))


def audited(owner: Owner) -> list[tuple[str, str | None, dict[str, Any] | None]]:
    """What the audit says of shells, the oldest first."""
    rows = owner.world.database.query(lambda c: audit.page(c, None, None, 100))
    return [(one.operation, one.object, one.after) for one in reversed(rows) if "shell" in one.operation]


def test_what_is_typed_reaches_the_rank_and_what_it_prints_comes_back_once(owner: Owner) -> None:
    job_id, shell = opened(owner, rows=24, columns=80, term="xterm")
    assert (shell.state.rank, shell.state.size, shell.state.term) == (0, (24, 80), "xterm")
    assert listed(owner, job_id)[0].state == "open"
    for _ in range(2):
        assert exchange(owner, job_id, b"ls\n", seq=1).input_seq == 1, "sent again it is kept once"
    exchange(owner, job_id, b"exit\n", seq=2, rows=30, columns=100)
    owner.world.tick(2)
    assert (shell.typed, shell.state.size) == ([b"ls\n", b"exit\n"], (30, 100))
    shell.print(b"a file\n", b"")
    shell.printed[1] = (2, STDERR, b"bye\n")
    owner.world.tick()
    for _ in range(2):
        found = exchange(owner, job_id)
        assert printed(found) == [(1, "stdout", b"a file\n"), (2, "stderr", b"bye\n")]
    assert printed(exchange(owner, job_id, after=1)) == [(2, "stderr", b"bye\n")]
    shell.end = ("the shell has ended", 3)
    owner.world.tick()
    ended = exchange(owner, job_id, after=2, wait_s=20)
    assert (ended.shell.state, ended.shell.exit_code, ended.output) == ("ended", 3, [])
    owner.world.tick()
    assert kept_chunks(owner) == 0
    assert owner.world.database.query(lambda c: store.under_way(c, owner.world.settings.cluster)) == []
    assert audited(owner) == [
        ("open_shell", job_id, {"shell": 1, "rank": 0, "command": []}),
        ("end_shell", job_id, {"shell": 1, "rank": 0, "message": "the shell has ended", "exit_code": 3}),
    ]
    assert [kind for kind, _ in owner.events(job_id)].count("job.shell_requested") == 1


def test_of_a_long_command_the_audit_has_the_beginning_and_the_digest(owner: Owner) -> None:
    job_id = owner.submit()
    owner.train(job_id)
    command = ["echo", "\x01" * 2000]
    made = owner.client.post(f"/v1/jobs/{job_id}/shells", json={"command": command})
    assert made.status_code == 201, made.text
    ((operation, _, facts),) = audited(owner)
    assert facts is not None
    whole = shlex.join(command).encode()
    assert (operation, facts["shell"], facts["rank"], facts["command_bytes"]) == (
        "open_shell",
        1,
        0,
        len(whole),
    )
    assert facts["command"].startswith("echo ")
    assert facts["command_sha256"] == hashlib.sha256(whole).hexdigest()


def test_half_a_character_is_no_word_of_a_command(owner: Owner) -> None:
    job_id = owner.submit()
    owner.train(job_id)
    body = b'{"command": ["\\ud800"]}'
    answer = owner.client.post(
        f"/v1/jobs/{job_id}/shells", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == 422, answer.text
    assert "a word that no program can have" in answer.text


def test_shells_are_off_unless_an_operator_turns_them_on(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    with owner_of(database, database_url, tmp_path) as owner:
        job_id = owner.submit()
        owner.train(job_id)
        answer = owner.client.post(f"/v1/jobs/{job_id}/shells", json={})
        assert (answer.status_code, answer.json()["code"]) == (403, "shells_off")
        assert "REMORA_SHELLS" in answer.text
        assert listed(owner, job_id) == []
        assert audited(owner) == []


def test_shells_that_are_turned_off_end(owner: Owner, database_url: str, tmp_path: Path) -> None:
    job_id, shell = opened(owner)
    owner.world.settings = owner.world.settings.model_copy(update={"shells": False})
    owner.world.succeed()
    owner.world.tick(2)
    assert owner.world.shells.over == [shell]
    assert listed(owner, job_id)[0].message == "shells were turned off in this service"


def test_what_one_types_and_reads_is_ones_own_also_for_admins(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    with two_projects(database, database_url, tmp_path) as service:
        job_id = service.submit("red")
        running = sa.update(jobs).where(jobs.c.id == job_id).values(state=JobState.RUNNING, world_size=1)
        database.transact(lambda connection: connection.execute(running))
        path = f"/v1/jobs/{job_id}/shells"
        mine, other = (service.token({"red": "admin"}) for _ in range(2))
        assert service.ask(mine, "POST", path, json={}).status_code == 201
        for who, status in ((mine, 200), (other, 404), (service.operator, 404)):
            answer = service.ask(who, "POST", f"{path}/1/exchange", json={})
            assert answer.status_code == status, answer.text
        assert service.ask(service.token({"blue": "admin"}), "POST", path, json={}).status_code == 404
        assert service.ask(service.token({"red": "submitter"}), "POST", path, json={}).status_code == 403
        assert service.ask(other, "DELETE", f"{path}/1").status_code == 202, "an admin may end it"


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"rank": 1}, 409, "no rank 1: it has 1 workers now, from rank 0"),
        ({"rank": -1}, 422, "rank"),
        ({"rows": 0, "columns": 80}, 422, "rows"),
        ({"rows": 5000, "columns": 80}, 422, "rows"),
        ({"term": "x\n"}, 422, "xterm-256color"),
        ({"command": ["a" * 9000]}, 422, "bytes"),
        ({"command": ["a\0"]}, 422, "no program"),
        ({"command": ["a"] * 129}, 422, "command"),
        ({"shell": "zsh"}, 422, "shell"),
    ],
)
def test_what_cannot_be_opened_is_refused_in_one_sentence(
    owner: Owner, body: dict[str, Any], status: int, text: str
) -> None:
    job_id = owner.submit()
    owner.train(job_id)
    answer = owner.client.post(f"/v1/jobs/{job_id}/shells", json=body)
    assert answer.status_code == status, answer.text
    assert text in answer.json()["detail"]
    assert listed(owner, job_id) == []


def test_a_job_that_does_not_run_has_no_shell(owner: Owner) -> None:
    waiting = owner.submit(workers=9)
    answer = owner.client.post(f"/v1/jobs/{waiting}/shells", json={})
    assert (answer.status_code, answer.json()["code"]) == (409, "not_changeable")
    owner.ask(waiting, "cancel")
    assert "has ended already" in owner.client.post(f"/v1/jobs/{waiting}/shells", json={}).text


def test_a_few_are_open_at_a_time(owner: Owner) -> None:
    job_id, shell = opened(owner)
    for _ in range(MOST_OPEN - 1):
        owner.ask(job_id, "shells", status=201, rank=0)
    refused = owner.client.post(f"/v1/jobs/{job_id}/shells", json={})
    assert (refused.status_code, "as many as may be" in refused.text) == (409, True)
    shell.end = ("the shell has ended", 0)
    owner.world.tick()
    assert owner.ask(job_id, "shells", status=201, rank=0)["number"] == MOST_OPEN + 1


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"seq": 2, "data": "bHM="}, 409, "the next chunk of input has the number 1"),
        ({"seq": 1, "data": "?"}, 422, "base64"),
        ({"seq": 1, "data": base64.b64encode(bytes(CHUNK_BYTES + 1)).decode()}, 422, "at most 8192 bytes"),
        ({"seq": 1, "data": "A" * 20_000}, 413, ""),
        ({"wait_s": 60}, 422, "wait_s"),
        ({"rows": 99999, "columns": 1}, 422, "rows"),
    ],
)
def test_hostile_input_is_refused(owner: Owner, body: dict[str, Any], status: int, text: str) -> None:
    job_id, shell = opened(owner)
    answer = owner.client.post(f"/v1/jobs/{job_id}/shells/1/exchange", json=body)
    assert answer.status_code == status, answer.text
    assert text in answer.json()["detail"]
    owner.world.tick()
    assert shell.typed == []


@pytest.mark.parametrize("number", ["2", "0", "-1", "x", "9" * 30])
def test_a_shell_that_is_not_there_is_not_found(owner: Owner, number: str) -> None:
    job_id, _ = opened(owner)
    for method, path in (("POST", f"{number}/exchange"), ("DELETE", number)):
        answer = owner.client.request(
            method, f"/v1/jobs/{job_id}/shells/{path}", **({"json": {}} if method == "POST" else {})
        )
        assert (answer.status_code, answer.json()["code"]) == (404, "shell_not_found")


def test_input_that_the_rank_does_not_take_and_output_that_is_not_read_are_bounded(owner: Owner) -> None:
    job_id, shell = opened(owner)
    shell.taken = -1
    for seq in range(1, MOST_WAITING + 1):
        assert exchange(owner, job_id, bytes(CHUNK_BYTES), seq=seq).input_seq == seq
    for _ in range(2):
        assert exchange(owner, job_id, b"x", seq=MOST_WAITING + 1).input_seq == MOST_WAITING
    shell.print(*[bytes(CHUNK_BYTES)] * 100)
    owner.world.tick(5)
    assert kept_chunks(owner) == MOST_WAITING + UNREAD_BYTES // CHUNK_BYTES
    shell.taken = 0
    owner.world.tick(2)
    assert exchange(owner, job_id, b"x", seq=MOST_WAITING + 1).input_seq == MOST_WAITING + 1
    after, seen = 0, 0
    while found := exchange(owner, job_id, after=after).output:
        after, seen = found[-1].seq, seen + len(found)
        owner.world.tick()
    assert seen == 100


@pytest.mark.parametrize(
    ("past_s", "text"),
    [
        (AWAY_S + 1, "its client has not asked for output for 60 s"),
        (IDLE_S + 1, "nothing was typed or printed for 15 min"),
        pytest.param(WHOLE_S + 1, "it was open for 8 h", marks=pytest.mark.soak),
    ],
)
def test_one_ends_when_its_client_is_gone_when_it_is_idle_and_after_its_longest_time(
    owner: Owner, past_s: float, text: str
) -> None:
    job_id, shell = opened(owner)
    until = owner.world.now + past_s
    while owner.world.now < until - AWAY_S / 2 and past_s > AWAY_S + 1:
        owner.world.now += AWAY_S / 2
        if past_s == WHOLE_S + 1:
            shell.print(b".")
        after = shell.state.after
        exchange(owner, job_id, after=after)
        owner.world.tick()
    owner.world.now = until
    owner.world.tick(2)
    (ended,) = listed(owner, job_id)
    assert ended.message is not None
    assert text in ended.message
    assert owner.world.shells.over == [shell]


def test_one_that_its_rank_does_not_open_ends(owner: Owner) -> None:
    job_id = owner.submit()
    owner.train(job_id)
    owner.world.shells.is_mute = True
    owner.ask(job_id, "shells", status=201, rank=0)
    owner.world.tick()
    owner.world.now += OPENED_WITHIN_S + 1
    owner.world.tick()
    (ended,) = listed(owner, job_id)
    assert "has not opened it within 60 s" in (ended.message or "")


def test_one_that_is_closed_ends_and_its_output_can_still_be_read_for_a_while(owner: Owner) -> None:
    job_id, shell = opened(owner)
    shell.print(b"last words")
    owner.world.tick()
    closed = owner.client.delete(f"/v1/jobs/{job_id}/shells/1")
    assert closed.status_code == 202
    owner.world.tick(2)
    assert owner.world.shells.over == [shell]
    found = exchange(owner, job_id)
    assert (printed(found)[0][2], found.shell.message) == (b"last words", "it was closed")
    owner.world.now += READ_WITHIN_S + 1
    owner.world.tick(2)
    assert kept_chunks(owner) == 0
    assert [operation for operation, _, _ in audited(owner)] == ["open_shell", "close_shell", "end_shell"]


@pytest.mark.parametrize("how", ["driver", "cancel", "pause"])
def test_one_ends_with_its_attempt(owner: Owner, how: str) -> None:
    job_id = owner.submit()
    driver = owner.train(job_id)
    owner.ask(job_id, "shells", status=201, rank=0)
    owner.world.tick()
    if how == "driver":
        driver.gone = DriverGone(EndReason.DRIVER_LOST, "its process died")
    else:
        owner.ask(job_id, how)
    owner.world.tick(4)
    (ended,) = listed(owner, job_id)
    assert ended.message == "its attempt has ended, or was stopped"


def test_of_two_requests_that_wait_for_one_shell_the_newer_waits_on(owner: Owner) -> None:
    """However many a client sends, one looks at the database."""
    job_id, _ = opened(owner)
    readers = owner.client.app.state.remora.shell_readers  # type: ignore[attr-defined]
    pause = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(exchange, owner, job_id, wait_s=20)
        while not readers:
            pause.wait(0.01)
        exchange(owner, job_id, wait_s=0.01)
        assert first.result(timeout=10).output == []
    assert readers == {}


class Killed(BaseException):
    """The process dies here."""


@pytest.mark.parametrize("write", ["take", "save"])
def test_a_controller_that_dies_before_it_has_written_loses_nothing_and_repeats_nothing(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, write: str
) -> None:
    job_id, shell = opened(owner)
    exchange(owner, job_id, b"once\n", seq=1)
    shell.print(b"said once")

    def die(*rest: object, **named: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(store, write, die)
        with pytest.raises(Killed):
            owner.world.tick()
    assert shell.typed == [b"once\n"]
    owner.world.succeed()
    owner.world.tick(3)
    assert shell.typed == [b"once\n"]
    assert printed(exchange(owner, job_id)) == [(1, "stdout", b"said once")]
    assert owner.world.shells.orders == sorted(owner.world.shells.orders)


def test_answers_that_are_lost_come_again(owner: Owner) -> None:
    job_id, shell = opened(owner)
    owner.world.shells.is_mute = True
    exchange(owner, job_id, b"once\n", seq=1)
    shell.print(b"said once")
    owner.world.tick(2)
    owner.world.shells.is_mute = False
    owner.world.tick(2)
    assert shell.typed == [b"once\n"]
    assert printed(exchange(owner, job_id)) == [(1, "stdout", b"said once")]


def test_a_deleted_job_leaves_no_shell(owner: Owner) -> None:
    job_id, shell = opened(owner)
    shell.print(b"a secret")
    owner.world.tick()
    owner.end(job_id)
    assert owner.client.delete(f"/v1/jobs/{job_id}").status_code == 202
    for _ in owner.world.ticks_until("its rows are gone"):
        if not owner.world.database.query(lambda c: store.of_job(c, job_id)):
            break
    assert kept_chunks(owner) == 0
