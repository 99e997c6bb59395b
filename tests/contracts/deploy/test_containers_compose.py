"""The compose file and the container file: what they give to the service is what the service reads."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from remora import __version__
from service.installation.arguments import parser
from service.installation.containers import ContainerProcess
from service.listening import isolation_of, listening
from service.settings import Settings
from tests.architecture.repository import ROOT

FOLDER = ROOT / "deploy/containers"
FILE = (FOLDER / "Containerfile").read_text()
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
OF_THE_CLUSTER = ("controller", "drivers", "head")
#: What an operator puts into `.env`.
GIVEN = {"REMORA_DATABASE_PASSWORD": "p-1", "REMORA_PUBLIC_URL": "https://remora.example.com"}


def ours() -> Iterator[tuple[str, dict[str, Any]]]:
    """The containers that run Remora."""
    for name, service in COMPOSE["services"].items():
        if "remora" in service["image"]:
            yield name, service


def filled(text: str) -> str:
    """A value after compose has put in what `.env` says, or its default."""

    def value(found: re.Match[str]) -> str:
        default = found["default"]
        given = GIVEN.get(found["name"], default)
        assert given is not None, f"{found['name']} has neither a value nor a default"
        return given

    return re.sub(r"\$\{(?P<name>\w+)(?::\?[^}]*|:-(?P<default>[^}]*))\}", value, text)


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name in [name for name in os.environ if name.startswith("REMORA_")]:
        monkeypatch.delenv(name)
    for name, value in COMPOSE["x-settings"].items():
        monkeypatch.setenv(name, filled(value))
    return Settings()


def command_of(service: dict[str, Any]) -> Any:
    """The command of a container as `remora-server` reads it."""
    return parser().parse_args(service["command"])


def test_every_setting_is_one_that_the_service_reads_and_lets_it_listen(settings: Settings) -> None:
    fields = {f"REMORA_{field.upper()}" for field in Settings.model_fields}
    assert COMPOSE["x-settings"].keys() <= fields
    found = listening(settings)
    assert (found.is_public, found.scheme) == (True, "https")
    assert settings.authentication == "required"
    # Without root there are no users for jobs, and `auto` would refuse every one.
    assert isolation_of(settings) == "none"
    assert settings.cloud == "local"
    assert all(service["environment"] == COMPOSE["x-settings"] for _, service in ours())


def test_the_database_is_the_one_that_the_settings_name_and_is_reached_from_inside_alone(
    settings: Settings,
) -> None:
    url, database = sa.make_url(settings.database_url), COMPOSE["services"]["database"]
    variables = {name: filled(value) for name, value in database["environment"].items()}
    assert (url.host, url.port) == ("database", 5432)
    assert (url.username, url.password, url.database) == (
        variables["POSTGRES_USER"],
        variables["POSTGRES_PASSWORD"],
        variables["POSTGRES_DB"],
    )
    assert "ports" not in database
    assert GIVEN["REMORA_DATABASE_PASSWORD"] not in (FOLDER / "compose.yaml").read_text()


def test_every_container_is_one_process_of_the_service_and_each_is_there() -> None:
    commands = {name: command_of(service) for name, service in ours()}
    assert {name: one.process for name, one in commands.items() if one.command == "process"} == {
        one.value: one.value for one in ContainerProcess
    }
    prepare = commands["prepare"]
    assert (prepare.command, str(prepare.prefix)) == ("prepare", "/var/lib/remora")
    assert COMPOSE["services"]["prepare"]["restart"] == "no", "it runs once for each `up`"
    assert all(
        service["depends_on"]["prepare"] == {"condition": "service_completed_successfully"}
        for name, service in ours()
        if name != "prepare"
    )


def test_no_container_has_more_rights_than_it_needs() -> None:
    (user,) = re.findall(r"^USER (.+)$", FILE, re.MULTILINE)
    for name, service in COMPOSE["services"].items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert not {"privileged", "cap_add", "devices"} & service.keys(), name
        assert service["user"].partition(":")[0].isdecimal(), name
        assert service["user"] != "0:0", name
    assert {service["user"] for _, service in ours()} == {user}
    assert f"--uid {user.partition(':')[0]} " in FILE


def test_only_the_api_is_reached_from_outside_at_its_own_port(settings: Settings) -> None:
    published = {name for name, service in COMPOSE["services"].items() if "ports" in service}
    assert published == {"api"}
    api = COMPOSE["services"]["api"]
    (port,) = api["ports"]
    outside, _, inside = filled(port).rpartition(":")
    assert int(inside) == settings.port
    first, _, last = outside.partition("-")
    assert int(last) - int(first) + 1 == api["deploy"]["replicas"], "one port for each replica"


def test_the_cluster_is_one_machine_that_outlives_its_controllers(settings: Settings) -> None:
    """Ray takes a node's processes, sockets and memory for those of one machine."""
    starter = COMPOSE["services"]["starter"]
    assert settings.ray_address.startswith("127."), "in the network of the starter"
    assert starter["ipc"] == "shareable"
    assert starter["init"] is True, "processes without parents are its own"
    for name in OF_THE_CLUSTER:
        service = COMPOSE["services"][name]
        assert {service[one] for one in ("network_mode", "pid", "ipc")} == {"service:starter"}, name
        assert service["volumes"] == starter["volumes"], name
    assert COMPOSE["services"]["controller"]["deploy"]["replicas"] > 1
    others = [name for name, service in ours() if "sockets:/tmp" in service["volumes"]]
    assert sorted(others) == sorted([*OF_THE_CLUSTER, "starter"]), "the API has nothing to do with Ray"


def test_health_is_asked_by_commands_of_the_service() -> None:
    asked = {name: one["healthcheck"]["test"] for name, one in ours() if "healthcheck" in one}
    assert asked.keys() == {"api", "controller"}
    for name, test in asked.items():
        assert test[:2] == ["CMD", "remora-server"]
        given = parser().parse_args(test[2:])
        assert (given.command, given.process) == ("health", name)
    lease = Settings.model_fields["lease_s"].default
    timeout = COMPOSE["services"]["controller"]["healthcheck"]["timeout"]
    assert int(timeout.removesuffix("s")) > 2 * lease + 10, "twice a lease, and the start of a process"


def test_what_is_kept_is_in_volumes_and_the_certificate_is_a_secret(settings: Settings) -> None:
    assert COMPOSE["volumes"].keys() == {"state", "sockets", "database"}
    for _, service in ours():
        assert "state:/var/lib/remora" in service["volumes"]
        # What is not a volume is read-only, but for /tmp.
        assert "sockets:/tmp" in service["volumes"] or "/tmp" in service["tmpfs"]
    assert settings.home.is_relative_to("/var/lib/remora")
    named = {str(settings.tls_certificate), str(settings.tls_key)}
    assert named == {f"/run/secrets/{name}" for name in COMPOSE["services"]["api"]["secrets"]}
    assert set(COMPOSE["services"]["api"]["secrets"]) == COMPOSE["secrets"].keys()


def test_the_image_is_of_this_release_and_its_packages_are_pinned() -> None:
    assert {filled(service["image"]) for _, service in ours()} == {f"remora:{__version__}"}
    commands = [line for line in FILE.splitlines() if "pip install" in line]
    assert len(commands) == 3
    assert all("--no-index" in line for line in commands), "nothing is downloaded while the image is built"
    assert "--require-hashes -r /requirements/lock.txt" in FILE
    assert re.search(r'^ENTRYPOINT \["remora-server"\]$', FILE, re.MULTILINE)


def test_the_image_can_copy_the_database() -> None:
    """`pg_dump` refuses a server of a later version than its own."""
    (base,) = re.findall(r"^ARG BASE=.*debian:(\w+)-slim$", FILE, re.MULTILINE)
    # What Debian's package postgresql-client is of.
    client = {"bookworm": 15, "trixie": 17}[base]
    assert " postgresql-client " in FILE
    image = COMPOSE["services"]["database"]["image"]
    assert int(image.rpartition(":")[2].partition("-")[0].partition(".")[0]) <= client


def build(tmp_path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path), **variables}
    return subprocess.run(
        [FOLDER / "build", *words], env=environment, capture_output=True, text=True, check=False
    )


def test_the_build_gives_the_engine_a_folder_of_its_own_and_leaves_nothing(tmp_path: Path) -> None:
    engine, wheels, made = tmp_path / "engine", tmp_path / "wheels", tmp_path / "made"
    engine.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {made}\nfor last; do :; done\nls -R "$last" >> {made}\n'
    )
    engine.chmod(0o755)
    wheels.mkdir()
    (wheels / "ray-1-py3-none-any.whl").write_text("")
    own = tmp_path / f"remora-{__version__}-py3-none-any.whl"
    own.write_text("")
    done = build(
        tmp_path, "python-of-no-machine", str(own), str(engine), "--tag=x", REMORA_WHEELS=str(wheels)
    )
    assert done.returncode == 0, done.stderr
    lines = made.read_text().splitlines()
    assert lines[:4] == ["build", "--file", str(FOLDER / "Containerfile"), "--tag=x"]
    assert {"lock.txt", "torch.txt", own.name, "ray-1-py3-none-any.whl"} <= set(lines)
    assert not Path(lines[4]).exists(), "its folder is removed"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_build_that_is_ended_builds_nothing_and_leaves_nothing(tmp_path: Path, number: int) -> None:
    python, engine = tmp_path / "python", tmp_path / "engine"
    python.write_text(f"#!/bin/sh\nkill -{number} $PPID\n")
    engine.write_text(f"#!/bin/sh\n: > {tmp_path}/built\n")
    for program in (python, engine):
        program.chmod(0o755)
    (tmp_path / "own.whl").write_text("")
    before = sorted(tmp_path.iterdir())
    done = build(tmp_path, str(python), str(tmp_path / "own.whl"), str(engine))
    assert done.returncode == 128 + number, done.stderr
    assert sorted(tmp_path.iterdir()) == before


def test_the_build_says_how_it_is_called(tmp_path: Path) -> None:
    done = build(tmp_path)
    assert done.returncode == 2
    assert "deploy/containers/build PYTHON WHEEL ENGINE" in done.stderr
