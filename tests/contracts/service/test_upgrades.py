"""An upgrade with a real supervisord, of releases whose processes do what a test says."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remora.free_ports import free_port
from service.installation import releases, upgrades
from service.installation.__main__ import main
from service.installation.layout import Installation, InstallationProblem, Layout, WentBack
from service.installation.releases import put_in_force
from service.installation.supervisors import Supervisord
from service.installation.units import Kind, units_of
from service.installation.upgrades import Upgrade, answers
from tests.e2e.processes import until

ROOT = Path(__file__).parents[3]
#: What is there in place of a release's `remora-server`; it does what `does.json` beside it says.
PROGRAM = f"""#!{sys.executable}
import http.server, json, os, pathlib, sys, time
sys.path.insert(0, {str(ROOT)!r})
from service.installation.layout import layout_of
folder = pathlib.Path(sys.argv[0]).resolve().parents[1]
does = json.loads((folder / "does.json").read_text())
prefix = pathlib.Path(sys.argv[sys.argv.index("--prefix") + 1])
with (prefix / "calls").open("a") as calls:
    print(folder.name, *sys.argv[1:3], file=calls)
if sys.argv[1] == "migrate":
    print(does["migrate"])
    sys.exit(0 if does["migrate"].isdecimal() else "it stands here why")
name = sys.argv[2]
layout_of(prefix).write_start(name, folder.name, os.getpid())
if does[name.partition("-")[0]] == "ends":
    sys.exit(1)
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"{{}}")
if name.startswith("api"):
    port = json.loads((prefix / "installation.json").read_text())["port"]
    http.server.HTTPServer(("127.0.0.1", port), Health).serve_forever()
time.sleep(600)
"""
OLD, NEW = "1.0-a", "1.1-b"
REAL_RUN = subprocess.run
#: What this test needs of a file with a migration.
MIGRATION = "revision = {!r}\ndown_revision = None\n"


class Machine:
    """An installation with one process of the API and two controllers, of the old release."""

    def __init__(self, prefix: Path) -> None:
        self.layout = Layout(prefix)
        self.said: list[str] = []
        self.installation = Installation(
            supervisor="supervisord",
            apis=1,
            port=free_port("127.0.0.1"),
            controllers=2,
            head=f"127.0.0.1:{free_port('127.0.0.1')}",
            has_head=False,
        )
        for folder in (self.layout.home, self.layout.run, self.layout.logs):
            folder.mkdir(parents=True)
        self.installation.write(self.layout.record)
        self.release(OLD)
        put_in_force(self.layout, OLD)
        Supervisord(self.layout).write(units_of(self.installation))

    def release(self, name: str, **does: str) -> None:
        """A release that knows the schema 0001, and what its processes do."""
        folder = self.layout.releases / name
        versions = folder / "lib/python3.11/site-packages/remora/_server/service/store/migrations/versions"
        versions.mkdir(parents=True)
        (versions / "0001_first.py").write_text(MIGRATION.format("0001"))
        usual = {"migrate": "0001", "api": "works", "controller": "works", "member": "works"}
        (folder / "does.json").write_text(json.dumps({**usual, **does}))
        (folder / "bin").mkdir()
        program = folder / "bin" / "remora-server"
        program.write_text(PROGRAM)
        program.chmod(0o755)

    def upgrade(self, release: str = NEW, *, starts_again: bool = False) -> None:
        Upgrade(self.layout, self.said.append).run(release, starts_again=starts_again)

    def runs(self) -> dict[str, str]:
        # The member of Ray's cluster goes on through an upgrade, as its head does.
        units = [unit for unit in units_of(self.installation) if unit.kind is not Kind.MEMBER]
        return {unit.name: self.layout.started_from(unit.name) for unit in units}

    def calls(self) -> list[str]:
        return (self.layout.prefix / "calls").read_text().splitlines()

    def all_of(self, release: str) -> dict[str, str]:
        return dict.fromkeys(("api-1", "controller-1", "controller-2"), release)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(upgrades, "LIVES_S", 1.0)
    monkeypatch.setattr(upgrades, "READY_S", 6.0)
    machine = Machine(tmp_path / "installed")
    supervisord = subprocess.Popen(
        [sys.executable, "-m", "supervisor.supervisord", "-c", Supervisord(machine.layout).configuration],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        until(lambda: answers(machine.installation.port, {}), "the API answers")
        until(lambda: machine.runs() == machine.all_of(OLD), "all processes run", 60.0)
        yield machine
    finally:
        supervisord.terminate()
        supervisord.wait(60)


def test_a_schema_that_cannot_be_made_replaces_nothing(machine: Machine) -> None:
    machine.release(NEW, migrate="no disk")
    with pytest.raises(InstallationProblem, match="nothing was replaced: it stands here why"):
        machine.upgrade()
    assert machine.layout.release() == OLD
    assert [call for call in machine.calls() if call.startswith(NEW)] == [f"{NEW} migrate --prefix"]


@pytest.mark.parametrize("ends", ["api", "controller"])
def test_a_release_that_does_not_work_is_taken_back_where_the_schema_is_the_same(
    machine: Machine, ends: str
) -> None:
    machine.release(NEW, **{ends: "ends"})
    with pytest.raises(WentBack, match=rf"{ends}-1 of {NEW} does not work .*; {OLD} is in force again"):
        machine.upgrade()
    assert machine.layout.release() == OLD
    assert machine.runs() == machine.all_of(OLD)
    assert answers(machine.installation.port, {})


def test_a_release_that_moved_the_schema_stays(machine: Machine) -> None:
    machine.release(NEW, migrate="0002", api="ends")
    # Also when the schema was moved by a call that was killed.
    for _ in range(2):
        with pytest.raises(InstallationProblem, match=rf"{NEW} stays in force.* run the same command again"):
            machine.upgrade()
        assert machine.layout.release() == NEW
        put_in_force(machine.layout, OLD)


def test_what_cannot_be_retired_is_said_when_all_is_replaced(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The command finds no Ray cluster; that takes Ray long.
    _command_that(monkeypatch, "import sys; sys.exit('the Ray cluster does not answer')")
    machine.release(NEW)
    for _ in range(2):
        with pytest.raises(InstallationProblem, match=r"all processes run 1\.1-b, but .* does not answer"):
            machine.upgrade()
        assert machine.runs() == machine.all_of(NEW)


def test_what_has_the_new_settings_is_not_started_once_more_until_they_change_again(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    _command_that(monkeypatch, "import sys; sys.exit('the Ray cluster does not answer')")
    layout = machine.layout
    certificate = layout.prefix / "tls.pem"
    layout.settings.parent.mkdir()
    layout.settings.write_text(f"REMORA_LOG_FORMAT=text\nREMORA_STORAGE_CREDENTIALS={certificate}\n")

    def started() -> set[int]:
        with pytest.raises(InstallationProblem, match="could not be retired"):
            machine.upgrade(OLD, starts_again=True)
        return {layout.pid_of(name) for name in machine.runs()}

    first = {layout.pid_of(name) for name in machine.runs()}
    second = started()
    assert not first & second
    assert started() == second, "the same call again goes on"
    certificate.write_text("another one")
    third = started()
    assert not third & second
    _command_that(monkeypatch, "")
    machine.upgrade(OLD, starts_again=True)
    assert {layout.pid_of(name) for name in machine.runs()} == third
    assert not layout.restarting.exists()
    machine.upgrade(OLD, starts_again=True)
    assert not {layout.pid_of(name) for name in machine.runs()} & third, "an operator asks for it again"


def test_nothing_goes_back_once_the_drivers_were_retired(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = f"pathlib.Path({str(machine.layout.releases / NEW / 'does.json')!r}).write_text"
    does = json.dumps({"migrate": "0001", "api": "works", "controller": "ends"})
    _command_that(monkeypatch, f"import pathlib; {ends}({does!r}); print('drivers-1.0-a')")
    machine.release(NEW)
    with pytest.raises(InstallationProblem, match=r"controller-2 .* stays in force, as the drivers' node"):
        machine.upgrade()
    assert machine.layout.release() == NEW
    assert "drivers-1.0-a ends with its last driver" in machine.said


def _command_that(monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Let the command that retires drivers' nodes be another one."""
    run = REAL_RUN

    def instead(command: list[str], **named: Any) -> subprocess.CompletedProcess[str]:
        other = [sys.executable, "-c", code] if "cluster.head.retire" in command else command
        return run(other, **named)  # type: ignore[no-any-return]

    monkeypatch.setattr(upgrades.subprocess, "run", instead)


@pytest.mark.parametrize("has_service", [True, False])
def test_an_upgrade_begins_with_a_backup_where_the_machine_has_the_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_service: bool
) -> None:
    layout = Layout(tmp_path)
    count = 1 if has_service else 0
    Installation(
        supervisor="supervisord", apis=count, port=1, controllers=count, head="127.0.0.2:1", has_head=True
    ).write(layout.record)
    put_in_force(layout, OLD)
    layout.home.mkdir()
    layout.releases.mkdir()
    with contextlib.closing(sqlite3.connect(layout.home / "remora.db")) as connection:
        connection.execute("CREATE TABLE leases (name)")
    if not has_service:
        (layout.home / "remora.db").unlink()
    monkeypatch.setattr(releases, "make", lambda *_: NEW)
    monkeypatch.setattr(upgrades.Upgrade, "run", lambda _, release: put_in_force(layout, release))
    assert main(["upgrade", "--wheel", "any.whl", "--prefix", str(tmp_path)]) == 0, capsys.readouterr().err
    assert (layout.backups / f"before-{NEW}.tar").exists() is has_service
    assert layout.release() == NEW


def test_a_process_that_has_ended_can_be_ended_and_started(machine: Machine) -> None:
    supervisord = Supervisord(machine.layout)
    supervisord.stop("controller-1")
    supervisord.stop("controller-1")
    first = machine.layout.pid_of("controller-1")
    supervisord.restart("controller-1")
    supervisord.start("controller-1")
    until(lambda: machine.layout.pid_of("controller-1") != first, "it was started again")
    with pytest.raises(InstallationProblem, match="no such process"):
        supervisord.stop("other-1")


def test_a_restoration_that_fails_starts_all_that_it_ended(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {name: machine.layout.pid_of(name) for name in machine.runs()}
    backup = machine.layout.prefix / "damaged.tar"
    _damaged(backup)
    assert main(["restore", str(backup), "--prefix", str(machine.layout.prefix)]) == 1
    assert "the backup is not in place: " in capsys.readouterr().err
    until(lambda: answers(machine.installation.port, {}), "the API answers again")
    until(
        lambda: all(machine.layout.pid_of(name) != pid for name, pid in before.items()),
        "all were started again",
    )


def _damaged(path: Path) -> None:
    import io
    import tarfile

    text = json.dumps({"form": 1, "at": "x", "release": "x", "files": {"ray.token": "sha256:0"}}).encode()
    with contextlib.closing(tarfile.open(path, "w")) as archive:
        info = tarfile.TarInfo("backup.json")
        info.size = len(text)
        archive.addfile(info, io.BytesIO(text))
