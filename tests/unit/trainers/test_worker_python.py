"""What a command installs stays its own: the packages of the node, and of other jobs, are only read."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from remora.isolation import Isolation
from tests.kept_apart import decide_or_skip
from tests.unit.trainers.supervisor_stage import Stage
from tests.wheels import wheel
from trainers.environments.build import environment
from trainers.environments.request import EnvironmentRequest
from trainers.environments.worker_python import make_worker_python
from trainers.processes.fork_server_client import ForkServer, job_fork_server
from trainers.supervisor import supervisor as module

PATH = "/usr/bin:/bin"
INSTALL = "pip install --quiet --disable-pip-version-check --no-index ./{}"


def shell(python: Path, line: str, folder: Path) -> str:
    """What a shell prints whose programs are the worker's first."""
    variables = {
        "PATH": f"{python.parent}:{PATH}",
        "VIRTUAL_ENV": str(python.parent.parent),
        "HOME": str(folder),
    }
    done = subprocess.run(["sh", "-c", line], cwd=folder, env=variables, capture_output=True, text=True)
    return (done.stdout + done.stderr).strip()


def test_a_command_installs_for_itself_and_sees_the_packages_of_the_node(tmp_path: Path) -> None:
    first, second = (make_worker_python(tmp_path / name, None).python for name in ("first", "second"))
    said = shell(
        first,
        INSTALL.format(wheel(tmp_path)) + " && python -c 'import tiny, numpy; print(tiny.VERSION)'",
        tmp_path,
    )
    assert said == "1.0"
    assert "No module named 'tiny'" in shell(second, "python -c 'import tiny'", tmp_path)
    assert "No module named 'tiny'" in shell(Path(sys.executable), "python -c 'import tiny'", tmp_path)
    assert shell(second, "python3 -c 'import sys; print(sys.prefix)'", tmp_path) == str(tmp_path / "second")
    assert shell(second, "python -c 'import remora; print(remora.__version__)'", tmp_path)


@pytest.mark.parametrize("version", [None, "3.12"])
def test_a_command_does_not_change_the_environment_that_jobs_share(
    version: str | None, tmp_path: Path
) -> None:
    shared, other = wheel(tmp_path, "shared"), wheel(tmp_path, "other")
    asked = EnvironmentRequest(pip=(f"./{shared}",), python=version)
    with environment(asked, tmp_path, lambda _: None, tmp_path / "envs") as built:
        before = installed_in(built.python)
        python = make_worker_python(tmp_path / "own", built.python).python
        line = "python -c 'import shared, other, sys; print(sys.version_info[1])'"
        said = shell(python, f"{INSTALL.format(other)} && {line}", tmp_path)
        assert said.splitlines()[-1] == ("12" if version else str(sys.version_info[1]))
        assert installed_in(built.python) == before


def installed_in(python: Path) -> set[str]:
    """What is in the folder of packages of an environment."""
    found = python.parent.parent.glob("lib/*/site-packages/*")
    return {path.name for path in found} - {"__pycache__"}


def test_a_forked_command_has_its_own_environment_too(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    warm = ForkServer(tmp_path / "fork-server", os.getpid(), ["json"])
    monkeypatch.setattr(module, "job_fork_server", lambda *_: warm)
    install = f"{{sys.executable}} -m {INSTALL.format(tmp_path / wheel(tmp_path))}".replace("./", "")
    stage.start(
        "import os, subprocess, sys\n"
        f"subprocess.run(f{install!r}.split(), check=True)\n"
        "import tiny, numpy\n"
        "print(tiny.VERSION, sys.prefix == os.environ['VIRTUAL_ENV'], tiny.__file__.startswith(sys.prefix))\n"
        "print(numpy.__file__.startswith(sys.prefix))",
        command=["python", "train.py"],
        variables={},
        warm_modules=("json",),
        # The wheel lies in a folder of the test, which users of jobs do not see.
        isolation="none",
    )
    assert stage.end() == {"type": "exit", "stopped": False, "exit_code": 0}, stage.driver.messages
    assert stage.driver.all("started")[0]["is_warm"] is True
    assert [line["text"] for line in stage.driver.all("log")] == ["1.0 True True", "False"]


@pytest.mark.parametrize("isolation", ["none", "users", "namespaces"])
def test_commands_of_a_job_with_an_environment_are_forked_from_its_interpreter_or_behind_walls_from_the_nodes(
    isolation: Isolation, stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    decide_or_skip(isolation)
    wheel(tmp_path)
    # Of an index of the site: the node's user installs no paths for a job that is confined.
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path))
    asked = EnvironmentRequest(pip=("tiny",))
    monkeypatch.setattr("trainers.processes.fork_server_client.os.getppid", os.getpid)
    stage.start(
        "import sys, tiny; print(tiny.VERSION, 'json' in sys.modules)",
        command=["python", "train.py"],
        variables={},
        environment=asked,
        warm_modules=("json",),
        isolation=isolation,
    )
    assert stage.driver.wait_for("prepared")["packages"] == 1
    assert stage.driver.all("started") == [], "it waits for the others"
    assert stage.supervisor is not None
    stage.supervisor.instruct({"type": "begin"})
    assert stage.end() == {"type": "exit", "stopped": False, "exit_code": 0}, stage.driver.messages
    assert stage.driver.all("started")[0]["is_warm"] is True
    assert "1.0 True" in [line["text"] for line in stage.driver.all("log")]
    (server,) = servers(tmp_path / "work")
    # One with packages of the job would import them as the node's user.
    ran = Path(server.cmdline()[0])
    assert ran.is_relative_to(tmp_path) is (isolation == "none")
    for server in servers(tmp_path / "work"):
        server.kill()
        server.wait(timeout=20)
    for kept in (tmp_path / "work").iterdir():
        shutil.rmtree(kept)


def servers(folder: Path) -> list[psutil.Process]:
    """The fork servers whose sockets are below a folder."""
    named = [
        one
        for one in psutil.process_iter(["cmdline"])
        if "trainers.processes.fork_server" in (one.info["cmdline"] or [])
    ]
    return [one for one in named if any(word.startswith(str(folder)) for word in one.info["cmdline"])]


def test_a_fork_server_that_nothing_uses_ends(tmp_path: Path) -> None:
    asked = EnvironmentRequest(pip=(f"./{wheel(tmp_path)}",))
    with environment(asked, tmp_path, lambda _: None, tmp_path / "envs") as built:
        server = ForkServer(tmp_path / "server", os.getpid(), ["json"], built.python, idle_s=0.2)
        server.ensure()
        (process,) = servers(tmp_path / "server")
        process.wait(timeout=20)
        assert not (tmp_path / "server").exists()


def test_an_interpreter_that_is_too_old_has_no_fork_server(tmp_path: Path) -> None:
    with environment(EnvironmentRequest(python="3.10"), tmp_path, lambda _: None, tmp_path / "envs") as built:
        assert built.version == (3, 10)
        assert job_fork_server(("torch",), built) is None
