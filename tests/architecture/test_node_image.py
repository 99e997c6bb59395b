"""The image of a node: its service is the one that start-up data starts, and what it runs is there."""

from __future__ import annotations

import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

from cluster.azure.body import NODE_FILE, NODE_SERVICE
from cluster.azure.emulator.start_up import IMAGE_PYTHON
from cluster.node.__main__ import RAY_ENDED, UNUSABLE
from remora.cgroups import LEAF
from tests.architecture.repository import ROOT, texts

FOLDER = ROOT / "deploy/node"
SCRIPTS = sorted(
    name
    for name, text in texts().items()
    if name.startswith("deploy/") and re.match(r"#!/bin/(ba)?sh\n", text)
)


@pytest.fixture(scope="module")
def unit() -> ConfigParser:
    parser = ConfigParser(strict=False, interpolation=None)
    parser.read_string((FOLDER / NODE_SERVICE).read_text())
    return parser


def test_the_start_up_data_starts_the_one_service_of_the_image() -> None:
    assert [path.name for path in FOLDER.glob("*.service")] == [NODE_SERVICE]


def test_the_service_runs_a_command_that_is_there_on_the_file_that_start_up_data_writes(
    unit: ConfigParser,
) -> None:
    python, *words, file = unit["Service"]["ExecStart"].split()
    assert (python, file) == (IMAGE_PYTHON, NODE_FILE)
    done = subprocess.run(
        [sys.executable, *words, "--help"],
        env={"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    assert NODE_FILE in done.stdout


def test_it_is_started_again_unless_that_would_change_nothing(unit: ConfigParser) -> None:
    service = unit["Service"]
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == str(UNUSABLE)
    assert RAY_ENDED not in (0, UNUSABLE)
    # However often a machine cannot join: the controller decides when it is given up.
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


def test_it_ends_with_all_that_it_started_and_its_secret_with_it(unit: ConfigParser) -> None:
    service = unit["Service"]
    assert service["KillMode"] == "control-group"
    assert (service["Delegate"], service["DelegateSubgroup"]) == ("yes", LEAF), (
        "each worker gets a cgroup of its own"
    )
    assert (service["RuntimeDirectory"], service["RuntimeDirectoryMode"]) == ("remora", "0700")
    assert "RuntimeDirectoryPreserve" not in service


def test_it_does_not_wait_for_the_step_of_the_boot_that_starts_it(unit: ConfigParser) -> None:
    after = unit["Unit"]["After"].split()
    assert "network-online.target" in after
    assert not [name for name in after if name.startswith("cloud-")]


def test_memory_can_be_pinned(unit: ConfigParser) -> None:
    assert unit["Service"]["LimitMEMLOCK"] == "infinity"


def test_the_image_has_what_the_service_names(unit: ConfigParser) -> None:
    script = (FOLDER / "make-image").read_text()
    assert f'install -m 0644 "$here/{NODE_SERVICE}" /etc/systemd/system/{NODE_SERVICE}' in script
    assert f"venv={IMAGE_PYTHON.removesuffix('/bin/python')}\n" in script
    (path,) = re.findall(r"^Environment=PYTHONPATH=(.*)$", (FOLDER / NODE_SERVICE).read_text(), re.MULTILINE)
    assert f"app={path} " in script
    assert re.search(rf"^ *useradd .* {unit['Service']['User']}$", script, re.MULTILINE)
    assert "systemctl enable" not in script


def test_the_image_is_made_of_parts_that_are_there() -> None:
    script = (FOLDER / "make-image").read_text()
    (parts,) = re.findall(r"^for part in (.*); do$", script, re.MULTILINE)
    assert [part for part in parts.split() if not (ROOT / part).exists()] == []
    # Whatever the packages import of each other is among them.
    assert {"remora", "service", "cluster", "trainers"} <= set(parts.split())


def test_the_template_builds_from_a_version_and_by_the_script() -> None:
    template = (FOLDER / "image.pkr.hcl").read_text()
    assert re.search(r'condition\s*= var\.base_version != "latest"', template)
    assert 'jsondecode(file("${path.root}/image-steps.json"))' in template
    assert "/deploy/node/make-image" in (FOLDER / "image-steps.json").read_text()
    wanted, declared = (
        set(re.findall(r"\bvar\.(\w+)", template)),
        re.findall(r'^variable "(\w+)"', template, re.MULTILINE),
    )
    assert wanted == set(declared)
    assert template.count("{") == template.count("}")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_can_be_read_by_their_shell(name: str) -> None:
    done = subprocess.run(["bash", "--posix", "-n", str(ROOT / name)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert Path(ROOT / name).stat().st_mode & 0o111, "it can be called"


def test_there_are_scripts() -> None:
    assert "deploy/node/make-image" in SCRIPTS
