"""Every unit of systemd that is installed or written is one that systemd itself accepts, without a warning."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from service.installation.layout import Installation, Layout
from service.installation.units import systemd_unit, units_of
from tests.architecture.repository import ROOT
from tests.needed import is_missing

#: What a unit runs, or is read by it, and what it stands for on the machine that tests run on.
_PROGRAM = re.compile(r"^(ExecStart=)(/\S+)", re.MULTILINE)
#: What the images of machines know (systemd 255) and an older systemd here does not, with the first that does.
_LATER = {"DelegateSubgroup": 254}


@pytest.fixture(scope="module")
def systemd_analyze() -> str:
    return shutil.which("systemd-analyze") or is_missing(
        "systemd is not installed, so NO UNIT IS VERIFIED: apt-get install systemd"
    )


def installed(folder: Path, role: str) -> dict[str, str]:
    """Units of a machine with that part of an installation, by their file names."""
    made = Installation(
        supervisor="systemd",
        apis=0 if role == "head" else 2,
        port=7265,
        controllers=0 if role == "head" else 2,
        head="10.0.0.4:6379",
        has_head=role != "service",
        user="remora",
    )
    layout = Layout(folder / "remora")
    return {
        f"remora-{unit.name}.service": systemd_unit(unit, made, layout)
        for unit in units_of(made, ["0.1.0-a", "0.1.1-b"])
    }


def of_start_up() -> dict[str, str]:
    """What the start-up data of a machine of deploy/azure writes."""
    document = yaml.safe_load((ROOT / "deploy/azure/machine/start-up.yaml").read_text())
    folder = "/etc/systemd/system/"
    return {
        one["path"].removeprefix(folder): one["content"]
        for one in document["write_files"]
        if one["path"].startswith(folder)
    }


def of_a_node() -> dict[str, str]:
    path = ROOT / "deploy/node/remora-node.service"
    return {path.name: path.read_text()}


def is_too_new(program: str, line: str) -> bool:
    """It is about a key that the systemd here is too old for."""
    key = re.search(r"Unknown key '(\w+)'", line)
    if key is None or key[1] not in _LATER:
        return False
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    return int(version.split()[1]) < _LATER[key[1]]


def verified(program: str, folder: Path, units: Mapping[str, str]) -> str:
    """What systemd says of these units; their programs are there, and do nothing."""
    runs = folder / "program"
    runs.write_text("#!/bin/sh\n")
    runs.chmod(0o755)
    paths = []
    for name, text in units.items():
        paths.append(folder / name)
        paths[-1].write_text(_PROGRAM.sub(rf"\g<1>{runs}", text))
    environment = {**os.environ, "SYSTEMD_UNIT_PATH": f"{folder}:", "SYSTEMD_LOG_LEVEL": "warning"}
    words = [program, "verify", "--man=no", "--recursive-errors=no", *map(str, paths)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=60)
    about = [line for line in done.stderr.splitlines() if any(name in line for name in units)]
    assert done.returncode == 0 or about, done.stderr
    return "\n".join(line for line in about if not is_too_new(program, line))


@pytest.mark.parametrize("role", ["both", "head", "service"])
def test_systemd_accepts_the_units_of_an_installation(
    systemd_analyze: str, tmp_path: Path, role: str
) -> None:
    units = installed(tmp_path, role)
    assert len(units) == {"both": 7, "head": 3, "service": 5}[role]
    assert verified(systemd_analyze, tmp_path, units) == ""


def test_systemd_accepts_what_machines_of_azure_start(systemd_analyze: str, tmp_path: Path) -> None:
    units = of_start_up()
    assert set(units) == {"remora-apply.service", "remora-apply.timer"}
    assert verified(systemd_analyze, tmp_path, {**units, **of_a_node()}) == ""


def test_what_systemd_does_not_know_is_seen(systemd_analyze: str, tmp_path: Path) -> None:
    (name, text), *_ = of_a_node().items()
    said = verified(
        systemd_analyze, tmp_path, {name: text.replace("Restart=on-failure", "Restart=sometimes")}
    )
    assert "sometimes" in said
