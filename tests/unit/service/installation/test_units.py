"""Which processes an installation has, how a supervisor is given them, and which one an upgrade replaces next."""

from __future__ import annotations

import configparser
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.head.retire import others
from service.installation import commands
from service.installation.arguments import parser
from service.installation.layout import (
    Installation,
    InstallationProblem,
    Layout,
    read_installation,
    read_settings_file,
)
from service.installation.releases import name_of, put_in_force
from service.installation.running import arguments_of, environment_of
from service.installation.supervisors import Supervisord
from service.installation.units import Kind, supervisord_configuration, systemd_unit, units_of
from service.installation.upgrades import Alive, next_unit

LAYOUT = Layout(Path("/srv/remora"))


def installation(**fields: object) -> Installation:
    usual: dict[str, object] = {
        "supervisor": "systemd",
        "apis": 2,
        "port": 7265,
        "controllers": 2,
        "head": "10.0.0.4:6379",
        "has_head": True,
    }
    return Installation(**{**usual, **fields})


def test_the_processes_are_those_that_were_asked_for() -> None:
    units = units_of(installation(), ["1.0-a"])
    assert [unit.name for unit in units] == [
        "head",
        "drivers-1.0-a",
        "api-1",
        "api-2",
        "controller-1",
        "controller-2",
    ]
    assert [unit.port for unit in units if unit.kind is Kind.API] == [7265, 7266]
    elsewhere = units_of(installation(has_head=False, apis=1, controllers=1), ["1.0-a"])
    # Ray lets a controller connect through a node of its own machine alone.
    assert [unit.name for unit in elsewhere] == ["member", "api-1", "controller-1"]
    texts = [systemd_unit(unit, installation(has_head=False), LAYOUT) for unit in elsewhere]
    assert ["remora-member.service" in text for text in texts] == [False, False, True]
    words = arguments_of(elsewhere[0], installation(has_head=False), LAYOUT)
    assert words[:2] == ["cluster.head", "member"]
    assert words[-4:] == ["--head", "10.0.0.4:6379", "--name", "member"]
    assert [unit.name for unit in units_of(installation(has_head=False, controllers=0))] == ["api-1", "api-2"]


@pytest.mark.parametrize("name", ["", "..", "1.0\nUser=root", "a b", "%h", "x" * 200])
def test_a_file_that_names_no_release_becomes_no_unit(name: str) -> None:
    kinds = [unit.name for unit in units_of(installation(), ["1.0-a", name]) if unit.kind is Kind.DRIVERS]
    assert kinds == ["drivers-1.0-a"]


def test_only_the_drivers_stay_with_their_release() -> None:
    texts = {
        unit.name: systemd_unit(unit, installation(), LAYOUT) for unit in units_of(installation(), ["1.0-a"])
    }
    assert (
        "ExecStart=/srv/remora/releases/1.0-a/bin/remora-server run drivers-1.0-a " in texts["drivers-1.0-a"]
    )
    assert "ExecStart=/srv/remora/current/bin/remora-server run api-1 " in texts["api-1"]
    # Nodes of the local cluster outlive the controller that started them.
    assert "KillMode=process" in texts["controller-1"]
    assert "KillMode=control-group" in texts["head"]


def test_supervisord_gets_the_same_processes() -> None:
    units = units_of(installation(), ["1.0-a"])
    parsed = configparser.RawConfigParser()
    parsed.read_string(supervisord_configuration(units, LAYOUT, "/run/s.sock"))
    programs = [name.removeprefix("program:") for name in parsed.sections() if name.startswith("program:")]
    assert programs == [unit.name for unit in units]
    assert parsed["program:head"]["killasgroup"] == "true"
    assert parsed["program:controller-1"]["killasgroup"] == "false"


def test_the_socket_of_a_long_path_is_elsewhere(tmp_path: Path) -> None:
    layout = Layout(tmp_path / ("long" * 30))
    Supervisord(layout).write(units_of(installation(), []))
    text = Supervisord(layout).configuration.read_text()
    address = text.partition("serverurl=unix://")[2].partition("\n")[0]
    assert len(address) < 108


RELEASES = st.sampled_from(["", "1.0-a", "1.1-b"])


@given(
    st.fixed_dictionaries(dict.fromkeys(("head", "api-1", "api-2", "controller-1", "controller-2"), RELEASES))
)
def test_an_upgrade_replaces_each_process_once_and_the_api_first(before: dict[str, str]) -> None:
    units, now, replaced = units_of(installation(), ["1.0-a"]), dict(before), []
    while (unit := next_unit(units, now, "1.1-b")) is not None:
        replaced.append(unit.name)
        now[unit.name] = "1.1-b"
    stale = [name for name, release in before.items() if release != "1.1-b" and name != "head"]
    assert replaced == sorted(stale)
    assert now["head"] == before["head"]


def test_a_process_gets_the_settings_and_what_the_installation_fixes() -> None:
    units = {unit.name: unit for unit in units_of(installation(), ["1.0-a"])}
    settings = {"REMORA_TICK_S": "1", "REMORA_HOME": "/elsewhere", "REMORA_CLOUD": "azure"}
    made = environment_of(units["api-2"], installation(), LAYOUT, settings, {"PATH": "/bin"})
    assert made["REMORA_TICK_S"] == "1"
    assert made["REMORA_HOME"] == "/srv/remora/state"
    assert made["REMORA_RAY_ADDRESS"] == "10.0.0.4:6379"
    assert "REMORA_FORKED_MODULES" not in made
    assert "REMORA_FORKED_MODULES" in environment_of(units["head"], installation(), LAYOUT, {}, {})
    assert arguments_of(units["api-2"], installation(), LAYOUT)[-2:] == ["--port", "7266"]
    # Whatever collects their lines reads JSON, unless the settings say otherwise.
    assert made["REMORA_LOG_FORMAT"] == "json"
    as_text = environment_of(units["head"], installation(), LAYOUT, {"REMORA_LOG_FORMAT": "text"}, {})
    assert as_text["REMORA_LOG_FORMAT"] == "text"


def test_a_wheel_is_known_by_version_and_digest(tmp_path: Path) -> None:
    wheel = tmp_path / "remora-0.2.0-py3-none-any.whl"
    wheel.write_bytes(b"one")
    first = name_of(wheel)
    wheel.write_bytes(b"two")
    assert first.startswith("0.2.0-")
    assert name_of(wheel) != first
    with pytest.raises(InstallationProblem, match="no wheel of Remora"):
        name_of(tmp_path / "other-0.2.0-py3-none-any.whl")
    with pytest.raises(InstallationProblem, match="cannot be read"):
        name_of(tmp_path / "remora-9-py3-none-any.whl")


def test_a_release_comes_into_force_at_once(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with pytest.raises(InstallationProblem, match="no release in force"):
        layout.release()
    put_in_force(layout, "1.0-a")
    # What a killed one left is no obstacle.
    (tmp_path / "current.draft").symlink_to("nowhere")
    put_in_force(layout, "1.1-b")
    assert layout.release() == "1.1-b"


def test_what_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    with pytest.raises(InstallationProblem, match="nothing is installed"):
        read_installation(layout)
    for text in ("{", "[]", '{"apis": 1}', '{"unknown": 1}'):
        layout.record.write_text(text)
        with pytest.raises(InstallationProblem, match="cannot be read"):
            read_installation(layout)
    installation().write(layout.record)
    assert read_installation(layout) == installation()


def test_a_line_of_the_settings_that_is_none_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "remora.env"
    assert read_settings_file(path) == {}
    path.write_text("# comment\n\nREMORA_DATABASE_URL=postgresql://u:p@h/d?a=b\n")
    assert read_settings_file(path) == {"REMORA_DATABASE_URL": "postgresql://u:p@h/d?a=b"}
    path.write_text("REMORA_TICK_S=1\nhunter2\n")
    with pytest.raises(InstallationProblem, match=r"line 2 of .* is not NAME=VALUE") as raised:
        read_settings_file(path)
    assert "hunter2" not in str(raised.value)


def test_processes_of_ray_get_no_secret_of_the_service() -> None:
    units = {unit.kind: unit for unit in units_of(installation(), ["1.0-a"])}
    settings = {
        "REMORA_DATABASE_URL": "postgresql://u:p@h/d", "REMORA_SECRETS_KEY_FILE": "/k", "PGPASSWORD": "p",
        "AZURE_CLIENT_SECRET": "s", "REMORA_JOB_UIDS": "1-2", "NCCL_DEBUG": "INFO",
    }  # fmt: skip
    for kind in (Kind.HEAD, Kind.DRIVERS):
        made = environment_of(units[kind], installation(), LAYOUT, settings, {})
        assert settings.keys() & made.keys() == {"REMORA_JOB_UIDS", "NCCL_DEBUG"}
    assert settings.items() <= environment_of(units[Kind.API], installation(), LAYOUT, settings, {}).items()


def test_a_process_lives_for_as_long_as_it_was_seen_without_another_one() -> None:
    alive = Alive()
    assert [alive.seconds(7, 10.0, runs=True), alive.seconds(7, 14.0, runs=True)] == [0.0, 4.0]
    # It ended, and its supervisor started another one.
    assert [alive.seconds(8, 15.0, runs=True), alive.seconds(8, 16.0, runs=True)] == [0.0, 1.0]
    assert alive.seconds(8, 17.0, runs=False) == 0.0
    assert [alive.seconds(8, 18.0, runs=True), alive.seconds(8, 19.0, runs=True)] == [0.0, 1.0]


def test_what_was_started_is_written_down(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    assert (layout.started_from("api-1"), layout.pid_of("api-1")) == ("", 0)
    layout.write_start("api-1", "1.0-a", 4711)
    assert (layout.started_from("api-1"), layout.pid_of("api-1")) == ("1.0-a", 4711)
    # As an earlier release wrote it.
    (layout.run / "api-1").write_text("1.0-a\n")
    assert (layout.started_from("api-1"), layout.pid_of("api-1")) == ("1.0-a", 0)


def test_nodes_for_drivers_of_other_releases_are_found_by_their_labels() -> None:
    names = {"1": "head", "2": "drivers-1.0-a", "3": "drivers", "4": "", "5": "drivers-0.9-z"}
    nodes = [
        {"NodeID": node, "Alive": node != "5", "Labels": {"remora-part": name} if name else {}}
        for node, name in names.items()
    ]
    assert others(nodes, "drivers-1.1-b") is None
    new = {"NodeID": "6", "Alive": True, "Labels": {"remora-part": "drivers-1.1-b"}}
    assert others([*nodes, new], "drivers-1.1-b") == {"drivers-1.0-a": "2"}


def test_a_machine_that_is_installed_again_follows_its_role_and_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(tmp_path / "installed")
    release = layout.releases / "1.0-a"
    release.mkdir(parents=True)
    put_in_force(layout, "1.0-a")
    installation(supervisor="supervisord", user="").write(layout.record)
    deployed = tmp_path / "service.env"
    deployed.write_text(f"REMORA_HOME={tmp_path}/home\nREMORA_RAY_ADDRESS=10.0.0.9:6380\nREMORA_PORT=443\n")
    monkeypatch.setattr(commands, "DEPLOYED", (deployed,))
    monkeypatch.setattr(sys, "prefix", str(release))
    # No supervisord runs here; what it is to run is written.
    assert commands.main(["install", "--role", "head", "--prefix", str(layout.prefix)]) == 1
    expected = replace(
        installation(), supervisor="supervisord", apis=0, controllers=0, port=443, head="10.0.0.9:6380",
        home=f"{tmp_path}/home", settings=(str(deployed),),
    )  # fmt: skip
    assert read_installation(layout) == expected
    assert "program:head" in Supervisord(layout).configuration.read_text()
    assert "program:api" not in Supervisord(layout).configuration.read_text()
    for words, count in ((("--apis", "2", "--controllers", "2"), 2), ((), 1)):
        # How many processes there are follows the machine's document, too.
        found = commands._of_role(parser().parse_args(["install", "--role", "service", *words]))
        assert (found.apis, found.controllers, found.port, found.has_head) == (count, count, 443, False)


@pytest.mark.parametrize("has_own_packages", [True, False])
def test_a_release_that_is_there_already_gets_what_a_setting_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_own_packages: bool
) -> None:
    layout = Layout(tmp_path / "installed")
    folder = layout.releases / "1.0-a"
    packages = folder / "lib/python3.11/site-packages"
    packages.mkdir(parents=True)
    if not has_own_packages:
        (packages / "_0_layers.pth").write_text("of another interpreter")
    python = folder / "bin/python"
    python.parent.mkdir()
    python.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/called\n')
    python.chmod(0o755)
    put_in_force(layout, "1.0-a")
    installation(supervisor="supervisord", user="").write(layout.record)
    deployed = tmp_path / "service.env"
    deployed.write_text(f"REMORA_HOME={tmp_path}/home\nREMORA_RAY_ADDRESS=10.0.0.9:6380\n")
    monkeypatch.setattr(commands, "DEPLOYED", (deployed,))
    monkeypatch.setattr(sys, "prefix", str(folder))
    install = ["install", "--role", "head", "--prefix", str(layout.prefix)]

    commands.main(install)
    assert not (tmp_path / "called").exists(), "no setting needs more"
    layout.settings.write_text("REMORA_RAY_JOBS_PORT=8265\n")
    commands.main(install)
    called = (tmp_path / "called").read_text() if (tmp_path / "called").exists() else ""
    assert ("-m pip" in called and "install --quiet ray[default]" in called) == has_own_packages
