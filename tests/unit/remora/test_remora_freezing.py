"""`remora submit --freeze` writes exact versions into the specification, and refuses what a list has no place for."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from remora.cli.exits import ExitCode
from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService
from tests.wheels import wheel

# It comes with the service, and environments for other versions of Python have the client alone.
pytestmark = pytest.mark.skipif(
    not Path(sys.executable).with_name("uv").exists(), reason="this environment has no uv"
)


@pytest.fixture(autouse=True)
def _only_packages_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    packages = tmp_path.parent / f"{tmp_path.name}-packages"
    packages.mkdir()
    for name, version, requires in (("tiny", "1.0", ()), ("tiny", "1.5", ()), ("needed", "2.0", ("tiny",))):
        wheel(packages, name, version, requires)
    (packages / "uv.toml").write_text(f'no-index = true\nfind-links = ["{packages}"]\n')
    monkeypatch.setenv("UV_CONFIG_FILE", str(packages / "uv.toml"))


def submitted(service: FakeService) -> dict[str, object]:
    (job,) = service.jobs.values()
    return dict(job.spec["environment"])


def test_packages_and_all_that_they_require_are_exact(cli: Cli, service: FakeService) -> None:
    assert (
        cli("submit", "-q", "--pip", "needed", "--pip", "torch>=2.10", "--freeze", "train.py") == ExitCode.OK
    )
    environment = submitted(service)
    assert environment["pip"] == ["needed==2.0", "tiny==1.5", "torch>=2.10"], "PyTorch is the nodes'"
    assert "2 packages are frozen" in cli.err


def test_a_file_of_requirements_becomes_a_list(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("tiny<1.5\n")
    (tmp_path / "needs.txt").write_text("# ours\nneeded\ntorch<2.14  # as on the nodes\n-r more.txt\n")
    assert cli("submit", "-q", "--requirements", "needs.txt", "--freeze", "train.py") == ExitCode.OK
    environment = submitted(service)
    assert (environment["pip"], environment["requirements"]) == (
        ["needed==2.0", "tiny==1.0", "torch<2.14"],
        None,
    )


def test_a_project_becomes_a_list(cli: Cli, service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\ndependencies = ["needed", "torch>=2.10"]\n'
    )
    assert cli("submit", "-q", "--requirements", "pyproject.toml", "--freeze", "train.py") == ExitCode.OK
    assert submitted(service)["pip"] == ["needed==2.0", "tiny==1.5", "torch>=2.10"]


@pytest.mark.parametrize(
    ("options", "written", "said"),
    [
        ((), "", "there is nothing to freeze"),
        (("--pip", "absent"), "", "uv finds no versions"),
        (("--requirements", "uv.lock"), "", "uv.lock names exact versions already"),
        (("--requirements", "needs.txt"), "--index-url x\n", "needs.txt has the option '--index-url x'"),
    ],
)
def test_what_cannot_be_frozen_is_said_and_nothing_is_sent(
    options: tuple[str, ...], written: str, said: str, cli: Cli, service: FakeService, tmp_path: Path
) -> None:
    for name in ("needs.txt", "uv.lock", "pyproject.toml"):
        (tmp_path / name).write_text(written)
    assert cli("submit", "-q", *options, "--freeze", "train.py") == ExitCode.USAGE
    assert said in " ".join(cli.err.split())
    assert service.jobs == {}
