"""What commands see of Remora: a link to the package of their node, or a copy where it was brought with the work."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from remora.ray_labels import BROUGHT_VARIABLE, are_packages_brought
from trainers.public_package import public_folder, public_package


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_node_with_remora_shows_its_own(tmp_path: Path) -> None:
    assert not are_packages_brought()
    public = public_folder(tmp_path)
    assert names_in(public) == ["remora"]
    assert (public / "remora").resolve() == public_package().resolve()


def test_a_package_that_was_brought_is_copied_whole_and_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(BROUGHT_VARIABLE, "1")
    # All workers of a node make it at the same time.
    with ThreadPoolExecutor(4) as threads:
        made = set(threads.map(lambda _: public_folder(tmp_path), range(8)))
    (public,) = made
    assert names_in(public) == ["remora"]
    assert not (public / "remora").is_symlink()
    words = [sys.executable, "-S", "-c", "import remora.training; print(remora.training.__file__)"]
    done = subprocess.run(
        words,
        env={"PYTHONPATH": str(public), "PATH": os.environ["PATH"]},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(public)
