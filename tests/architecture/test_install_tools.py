"""`deploy/install-tools` installs what tests and benchmarks start, or says what is left out; CI leaves out nothing."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT, sources, texts

SCRIPT = ROOT / "deploy/install-tools"
#: What the script itself starts.
OWN = ("sh", "ls", "tr", "sed")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A PATH with nothing but what the script itself starts, for a user who is not root."""
    for name in OWN:
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    program(tmp_path, "id", "echo 1000")
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / name).chmod(0o755)


def is_root(folder: Path, apt_get: str) -> None:
    """The PATH of root, where apt-get writes down what it is called with and then does something."""
    program(folder, "id", "echo 0")
    program(folder, "apt-get", f'echo "$*" >>{folder}/called\n{apt_get}')


def run(folder: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [folder / "sh", SCRIPT, *words],
        env={"PATH": str(folder), **variables},
        capture_output=True,
        text=True,
    )


def test_what_is_there_costs_nothing(folder: Path) -> None:
    program(folder, "mpirun", "true")
    is_root(folder, "false")
    done = run(folder, "mpirun")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert not (folder / "called").exists()


def test_root_installs_what_is_missing_and_nothing_else(folder: Path) -> None:
    program(folder, "git", "true")
    is_root(folder, f"cd {folder} && echo >mpirun && echo >ip && /bin/chmod +x mpirun ip")
    done = run(folder, "mpirun", "git", "ip")
    assert done.returncode == 0, done.stderr
    update, install = (folder / "called").read_text().splitlines()
    assert update.split()[0] == "update"
    assert install.endswith("--no-install-recommends openmpi-bin iproute2")


def test_without_permission_it_says_what_to_install(folder: Path) -> None:
    done = run(folder, "mpirun", "ip")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "make: mpirun ip not found (needs root); as root: apt-get install openmpi-bin iproute2"
    ]


@pytest.mark.parametrize("apt_get", ["exit 100", "exit 0"])
def test_an_apt_get_that_brings_nothing_is_not_believed(folder: Path, apt_get: str) -> None:
    is_root(folder, apt_get)
    done = run(folder, "mpirun")
    assert done.returncode == 1
    assert "make: mpirun not found (apt-get " in done.stderr


def test_what_is_left_out_is_said_loudly_and_the_rest_goes_on(folder: Path) -> None:
    program(folder, "mpirun", "true")
    done = run(folder, "--or-warn", "mpirun", "ip", "cc")
    assert done.returncode == 0
    assert "LEFT OUT, as programs are missing (needs root)" in done.stderr
    assert [line.split(":")[0] for line in done.stderr.splitlines() if line.startswith("  - ")] == [
        "  - ip", "  - cc",
    ]  # fmt: skip
    assert "apt-get install iproute2 gcc libc6-dev" in done.stderr


def test_ci_leaves_out_nothing(folder: Path) -> None:
    assert run(folder, "--or-warn", "ip", CI="true").returncode == 1


def test_a_word_that_is_none_of_its_programs_is_refused(folder: Path) -> None:
    assert run(folder, "--or-warn", "mpirum").returncode == 2


def test_make_test_installs_every_program_that_a_test_looks_for() -> None:
    looked_for = {
        name for text in sources("tests").values() for name in re.findall(r"\bwhich\(\"([\w-]+)\"\)", text)
    }
    (installed,) = re.findall(r"^\tdeploy/install-tools --or-warn (.*)$", texts()["Makefile"], re.MULTILINE)
    assert looked_for == set(installed.split())
    assert re.search(r"^test: test-tools ", texts()["Makefile"], re.MULTILINE)


def test_the_benchmark_of_backends_installs_what_it_measures_unless_it_is_left_out() -> None:
    def shown(*words: str) -> str:
        command = ["make", "--dry-run", "--always-make", "bench-backends", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    needed = ["install-tools mpirun", "requirements/tensorflow.txt", "requirements/deepspeed.txt"]
    assert [one for one in needed if one not in shown()] == []
    fewer = shown("LEAVE_OUT=mpi tensorflow zero")
    assert [one for one in needed if one in fewer] == []
    assert "--leave-out mpi --leave-out tensorflow --leave-out zero" in fewer
