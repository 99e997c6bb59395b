"""The wheel in an empty virtual environment and an empty folder, without a checkout."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.processes import processes_with
from tests.installed_wheel import build_wheel, install

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(tmp_path_factory.mktemp("wheel"))


def run(command: list[str | Path], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """In an empty folder and with nothing of this environment's variables."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    return subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "HOME": str(home), **variables},
        capture_output=True,
        text=True,
        timeout=580,
    )


def test_the_wheel_alone_has_the_client_and_says_how_to_get_the_service(wheel: Path, tmp_path: Path) -> None:
    programs = install(wheel, tmp_path / "env")
    imported = "import remora, remora.training, remora.client; print(remora.Client.__name__)"
    shown = run([programs / "python", "-c", imported], tmp_path)
    assert (shown.returncode, shown.stdout) == (0, "Client\n"), shown.stderr
    for command in ("up", "demo"):
        refused = run([programs / "remora", command], tmp_path)
        assert refused.returncode != 0
        assert "this installation has only the client" in refused.stderr
        assert f"pip install 'remora[service] @ {wheel.as_uri()}'" in refused.stderr
        assert "Traceback" not in refused.stderr
    helped = run([programs / "remora", "submit", "--help"], tmp_path)
    assert helped.returncode == 0, helped.stderr


def test_no_folder_of_a_script_meets_one_of_the_service(wheel: Path, tmp_path: Path) -> None:
    programs = install(wheel, tmp_path / "env")
    names = ("service", "cluster", "trainers", "examples", "deploy")
    looked = f"import importlib.util as u; print([n for n in {names!r} if u.find_spec(n)])"
    shown = run([programs / "python", "-P", "-c", looked], tmp_path)
    assert shown.stdout == "[]\n", shown.stderr


@pytest.mark.soak
@pytest.mark.slow
def test_the_demo_runs_in_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    programs = install(wheel, tmp_path / "env", "service")
    folder = tmp_path / "empty"
    folder.mkdir()
    # A folder that is named like one of the service's packages is no part of it.
    (folder / "trainers").mkdir()
    (folder / "trainers" / "__init__.py").write_text("raise ImportError('that is the script of a user')\n")
    done = run([programs / "remora", "demo"], folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert (result["repeated_steps"], result["attempts"]) == (0, 1)
    assert Path(result["checkpoint"]).is_relative_to(folder / ".demo")
    assert processes_with(str(folder)) == []
    # What stands there now is a demo's; a folder with other files is never removed.
    other = tmp_path / "other"
    other.mkdir()
    (other / "thesis.txt").write_text("years of work")
    refused = run([programs / "remora", "demo", "--home", other], folder)
    assert refused.returncode == 1
    assert "choose another folder with --home" in refused.stdout.replace("\n", " ")
    assert (other / "thesis.txt").read_text() == "years of work"
