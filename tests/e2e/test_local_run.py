"""`remora dev` and `remora env` do on this machine, without any service, what a node would do with a job."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT
from tests.e2e.processes import processes_with
from tests.wheels import wheel

SCRIPT = """
import os, sys, tiny
from remora import training

print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"], "with tiny", tiny.VERSION)
for step in range(1, 10**9):
    training.report(step, {"loss": 1 / step})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    code = tmp_path / "code"
    code.mkdir()
    (code / "train.py").write_text(SCRIPT)
    wheel(code)
    return code


def remora(folder: Path, *words: str, **variables: str) -> tuple[int, str, str]:
    """Exit code, output and errors of a command that finds no service, and keeps its files beside the folder."""
    done = subprocess.run(
        [Path(sys.executable).with_name("remora"), *words],
        cwd=folder,
        env={
            "PATH": "/usr/bin:/bin",
            "HOME": str(folder.parent),
            "REMORA_WORK_DIR": str(folder.parent / "work"),
            **variables,
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_job_is_tried_until_its_first_step(folder: Path) -> None:
    code, out, errors = remora(folder, "dev", "--pip", "./tiny-1.0-py3-none-any.whl", "train.py")
    assert (code, errors) == (0, "")
    assert "code: 2 files" in out
    assert "rank 0 of 1 with tiny 1.0" in out
    assert "remora: step 1 after" in out
    assert "a node would go on from here" in out
    # Nothing is left but the environment and what is kept for the project, and no process.
    assert {path.name for path in (folder.parent / "work").iterdir()} - {"caches"} == {"environments"}
    assert processes_with(str(folder.parent)) == []


def test_a_file_is_tried_as_it_would_be_submitted(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "code: .\ncommand: python train.py\nworkers: 8\nresources: {gpus: 1}\n"
        "environment: {pip: [./tiny-1.0-py3-none-any.whl]}\n"
    )
    code, out, _ = remora(folder, "dev", "--steps", "3", "job.yaml")
    assert code == 0
    assert out.count("remora: step ") == 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("train.py",), 1, "remora: a node would fail: the command ended with exit code 1"),
        (("--pip", "./absent.whl", "train.py"), 1, "remora: a node would fail: uv could not build it"),
        (("--", "python", "absent.py"), 2, "command: there is no file 'absent.py' in the code"),
        (("--python", "2.7", "train.py"), 2, "environment.python: '2.7' given"),
        (
            ("--", "no-such-program"),
            1,
            "remora: a node would fail: no-such-program: No such file or directory",
        ),
    ],
)
def test_what_a_node_would_fail_with_is_said_here(
    words: tuple[str, ...], code: int, said: str, folder: Path
) -> None:
    ended, _, errors = remora(folder, "dev", *words)
    assert ended == code
    assert said in errors


def test_a_command_that_reports_nothing_says_so(folder: Path) -> None:
    code, out, _ = remora(folder, "dev", "--", "python", "-c", "print('done')")
    assert code == 0
    assert "the command returned 0, and it reported no step" in out


def test_secrets_of_a_job_are_those_of_the_shell(folder: Path) -> None:
    (folder / "job.yaml").write_text(
        "command: [bash, -c, 'cat $REMORA_SECRETS/TOKEN; echo $OWN']\n"
        "environment: {secrets: [{name: TOKEN, variable: OWN}]}\n"
    )
    code, _, errors = remora(folder, "dev", "job.yaml")
    said = "environment.secrets: no service is asked here; give TOKEN as a variable of this shell"
    assert (code, errors) == (2, f"remora: {said}\n")
    code, out, _ = remora(folder, "dev", "job.yaml", TOKEN="value-of-a-secret")
    assert code == 0, out
    assert "[secret TOKEN]" in out
    assert "value-of-a-secret" not in out


def test_environments_are_built_listed_and_removed(folder: Path) -> None:
    assert "This machine has no environments" in remora(folder, "env", "list")[1]
    build = ("env", "build", "--pip", "./tiny-1.0-py3-none-any.whl", "train.py")
    first, again = remora(folder, *build)[1], remora(folder, *build)[1]
    assert "1 package, built in" in first
    assert "1 package, there already" in again
    digest = again.splitlines()[-1].split()[1].rstrip(":")
    assert remora(folder, "env", "list")[1].split()[:3] == [digest, "1", "package"]
    assert "1 environment was removed" in remora(folder, "env", "prune")[1]
    assert "This machine has no environments" in remora(folder, "env", "list")[1]
    assert "it runs in that of the nodes" in remora(folder, "env", "build", "train.py")[1]


def test_ctrl_c_ends_the_command_too(folder: Path) -> None:
    (folder / "train.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(1000)\n")
    started = subprocess.Popen(
        [Path(sys.executable).with_name("remora"), "dev", "train.py"],
        cwd=folder,
        env={**os.environ, "REMORA_WORK_DIR": str(folder.parent / "work")},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert started.stdout is not None
    assert any("begun" in line for line in started.stdout)
    os.killpg(started.pid, 2)
    assert started.wait(timeout=60) == 130
    assert processes_with(str(folder.parent)) == []


def test_neither_ray_nor_a_database_is_waited_for() -> None:
    """Importing them takes longer than all else that a short command waits for."""
    code = "import sys, service.local_run; print(*{'ray', 'sqlalchemy', 'torch'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "\n"


def test_nor_is_ray_imported_while_the_command_runs(folder: Path) -> None:
    """Its compiled modules swallow a Ctrl-C that comes while they are imported."""
    (folder / "train.py").write_text("print('begun')\n")
    done = subprocess.run(
        [Path(sys.executable).with_name("remora"), "dev", "train.py"],
        cwd=folder,
        env={
            **os.environ, "REMORA_WORK_DIR": str(folder.parent / "work"), "PYTHONPROFILEIMPORTTIME": "1",
        },
        capture_output=True,
        text=True,
        timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "trainers.supervisor.supervisor" in imported
    assert not imported & {"ray", "sqlalchemy"}
