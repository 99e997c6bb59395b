"""What the containers of the service become, what is prepared for them, and when they count as healthy."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
import sqlalchemy as sa

from cluster.local.node_starter import VARIABLE
from service.installation import containers
from service.installation.__main__ import main
from service.installation.containers import ContainerProcess, arguments_of, environment_of, prepare
from service.installation.health import NO_TABLES, check_api, check_controllers, is_led
from service.installation.layout import InstallationProblem, Layout, layout_of, read_installation
from service.settings import Settings
from service.store import leases
from service.store.database import Database
from service.store.leases import LeaseRow
from tests.architecture.repository import ROOT

HEAD = "127.0.0.2:6379"


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """The settings in the environment, as containers have them."""
    for name in [name for name in os.environ if name.startswith(("REMORA_", "PG"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("REMORA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("REMORA_AUTHENTICATION", "required")
    monkeypatch.setenv("REMORA_RAY_ADDRESS", HEAD)
    monkeypatch.setenv("REMORA_LEASE_S", "0.5")
    return Settings()


def state_of(folder: Path) -> dict[str, bytes]:
    """Content of every file, but what SQLite keeps beside its own."""
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and ".db" not in path.name
    }


def row(token: int = 1, renewals: int = 0, owner: str = "one") -> LeaseRow:
    return LeaseRow(name="controller", owner=owner, token=token, renewals=renewals, renewed_at=0.0)


def test_every_process_is_a_module_of_the_service_in_the_home() -> None:
    home = Path("/var/lib/remora/home")
    modules = {one: arguments_of(one, home, HEAD)[0] for one in ContainerProcess}
    assert modules == {
        "api": "service.api_process",
        "controller": "service.controller",
        "head": "cluster.head",
        "drivers": "cluster.head",
        "starter": "cluster.local.node_starter",
    }
    for one in ContainerProcess:
        words = arguments_of(one, home, HEAD)
        assert words[words.index("--home") + 1] == str(home)
    assert arguments_of(ContainerProcess.DRIVERS, home, HEAD)[1] == "drivers"
    assert arguments_of(ContainerProcess.HEAD, home, HEAD)[-4:] == ["--head", HEAD, "--name", "head"]


def test_processes_of_ray_get_no_setting_of_the_service(
    given: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMORA_DATABASE_URL", "postgresql://remora:secret@database/remora")
    monkeypatch.setenv("PGPASSWORD", "secret")
    for one in ContainerProcess:
        has = "secret" in " ".join(environment_of(one, given.home).values())
        assert has == (one in (ContainerProcess.API, ContainerProcess.CONTROLLER)), one
        starts_nodes_itself = VARIABLE not in environment_of(one, given.home)
        assert starts_nodes_itself == (one is not ContainerProcess.CONTROLLER)
    assert "RAY_AUTH_TOKEN_PATH" not in environment_of(ContainerProcess.API, given.home)


def test_a_cluster_without_an_address_of_its_head_is_said(
    given: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("REMORA_RAY_ADDRESS", "")
    assert main(["process", "controller"]) == 1
    assert "REMORA_RAY_ADDRESS does not say" in capsys.readouterr().err
    monkeypatch.setenv("REMORA_LEASE_S", "x")
    assert main(["health", "controller"]) == 1
    assert "a setting in the environment of this container is wrong" in capsys.readouterr().err


def test_what_is_prepared_is_private_and_prepared_once(given: Settings, tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    said = prepare(given, layout, os.environ)
    assert said[0] == f"the first operator's token is in {given.home / 'operator.token'}"
    made = state_of(tmp_path)
    assert {Path(path).name for path in made} >= {"ray.token", "secrets.key", "operator.token", "remora.env"}
    open_to_others = [
        path for path in (*map(Path, made), given.home / "remora.db") if path.stat().st_mode & 0o077
    ]
    assert [path.name for path in open_to_others] in ([], ["installation.json"])
    assert prepare(given, layout, os.environ) == said
    assert state_of(tmp_path) == made


def test_what_a_killed_one_left_is_completed(
    given: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path)
    for place in ("migrate", "_record", "write_private"):
        with monkeypatch.context() as cut:
            cut.setattr(containers, place, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                prepare(given, layout, os.environ)
    (tmp_path / ".current").symlink_to("nothing")
    prepare(given, layout, os.environ)
    assert layout.release() == f"remora-{containers.__version__}"
    assert read_installation(layout).supervisor == "containers"
    assert layout_of(tmp_path).home == given.home
    assert layout.read_settings()["REMORA_HOME"] == str(given.home)


def test_a_setting_of_several_lines_is_refused(given: Settings, tmp_path: Path) -> None:
    with pytest.raises(InstallationProblem, match="REMORA_X has several lines"):
        prepare(given, Layout(tmp_path), {"REMORA_X": "a\nREMORA_AUTHENTICATION=none"})


@pytest.mark.parametrize(
    ("before", "now", "leads"),
    [
        (None, None, False),
        (None, row(), True),
        (row(), row(), False),
        (row(renewals=4), row(renewals=5), True),
        (row(token=1, renewals=4), row(token=2, renewals=4), True),
        (row(), row(renewals=1, owner=""), False),
        (None, row(owner=""), False),
    ],
)
def test_a_lease_that_is_renewed_or_taken_is_held(
    before: LeaseRow | None, now: LeaseRow | None, leads: bool
) -> None:
    assert is_led(before, now) is leads


def test_a_controller_that_renews_its_lease_is_healthy_and_a_silent_one_is_not(
    given: Settings, tmp_path: Path
) -> None:
    prepare(given, Layout(tmp_path), os.environ)
    database = Database(given.database)
    taken = database.transact(
        lambda connection: leases.take(connection, None, "controller", "one", 0.0, None)
    )
    assert taken is not None
    clock = [0.0]

    def rest(seconds: float) -> None:
        clock[0] += seconds
        if renews:
            database.transact(lambda connection: leases.renew(connection, taken, 0.0))

    renews = True
    check_controllers(database, given, lambda: clock[0], rest)
    renews = False
    with pytest.raises(InstallationProblem, match=r"no controller has led the cluster default for 1 s"):
        check_controllers(database, given, lambda: clock[0], rest)
    database.close()


def test_a_database_without_tables_is_named_in_one_sentence(
    given: Settings, capsys: pytest.CaptureFixture[str], database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMORA_DATABASE_URL", database_url)
    with contextlib.closing(Database(database_url)) as database:
        database.transact(lambda connection: connection.execute(sa.text("DROP TABLE leases")))
    assert main(["health", "controller"]) == 1
    assert capsys.readouterr().err == f"remora-server: {NO_TABLES}\n"


def test_an_api_that_does_not_answer_is_not_healthy(given: Settings) -> None:
    with pytest.raises(InstallationProblem, match="does not answer at port 1 "):
        check_api(given.model_copy(update={"port": 1}))


def test_a_backup_is_restored_only_while_no_controller_leads(
    given: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    at = ["--prefix", str(tmp_path)]
    assert main(["prepare", *at]) == 0
    assert main(["backup", str(tmp_path / "backups/one.tar"), *at]) == 0
    with sqlite3.connect(given.home / "remora.db") as connection:
        connection.execute("DELETE FROM tokens")
    with monkeypatch.context() as cut:
        cut.setattr("service.installation.container_commands.check_controllers", lambda *_: None)
        assert main(["restore", str(tmp_path / "backups/one.tar"), *at]) == 1
    assert "end them with `compose stop api controller`" in capsys.readouterr().err
    assert main(["restore", str(tmp_path / "backups/one.tar"), *at]) == 0, capsys.readouterr().err
    with sqlite3.connect(given.home / "remora.db") as connection:
        assert connection.execute("SELECT count(*) FROM tokens").fetchone() == (1,)


def test_an_upgrade_is_left_to_the_engine(
    given: Settings, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["prepare", "--prefix", str(tmp_path)]) == 0
    token = (given.home / "ray.token").read_text()
    for words in (["rotate", "--yes"], ["upgrade", "--wheel", "remora-9-py3-none-any.whl"]):
        assert main([*words, "--prefix", str(tmp_path)]) == 1
        assert "containers are started and ended by their engine" in capsys.readouterr().err
    assert (given.home / "ray.token").read_text() == token


def test_health_loads_no_migrations_and_no_backups(given: Settings) -> None:
    look = (
        "import sys\n"
        "from service.installation.__main__ import main\n"
        "assert main(['health', sys.argv[1]]) == 1\n"
        "print(*sys.modules)"
    )
    for process in ("api", "controller"):
        environment = {**os.environ, "REMORA_PORT": "1", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            [sys.executable, "-c", look, process], env=environment, capture_output=True, text=True, check=True
        )
        loaded = set(done.stdout.split())
        assert not loaded & {"alembic", "ray", "service.store.migrate", "service.installation.backups"}
        assert ("sqlalchemy" in loaded) == (process == "controller")
