"""Importing the package: a training script in an environment of its own must not need our dependencies."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import remora

ROOT = Path(remora.__file__).parent.parent


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in an interpreter that sees the standard library and this repository, and no installed package."""
    command = [
        sys.executable,
        "-S",
        "-E",
        "-P",
        "-c",
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}",
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "module", ["remora", "remora.training", "remora.errors", "remora.states", "remora.code.bundle"]
)
def test_scripts_need_only_the_standard_library(module: str) -> None:
    done = run(
        f"import {module}; print(sorted(n for n in ('pydantic', 'httpx2', 'typer') if n in sys.modules))"
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_states_errors_and_bundles_work_without_installed_packages() -> None:
    done = run("import remora; print(remora.JobState.QUEUED, remora.SpecError.__name__, remora.__version__)")
    assert done.stdout.split() == ["queued", "SpecError", remora.__version__]


def test_every_public_name_is_there() -> None:
    assert set(remora.__all__) == set(dir(remora))
    for name in remora.__all__:
        assert getattr(remora, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Bogus'"):
        _ = remora.Bogus


def test_help_loads_no_client() -> None:
    heavy = ("httpx2", "pydantic", "yaml", "rich.table")
    code = f"import sys, remora.cli.main; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
