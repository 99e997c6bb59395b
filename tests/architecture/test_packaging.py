"""What is installed: the wheel has the public package and nothing else, and the lock names exact files."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import remora
from tests.architecture.repository import ROOT, texts


def test_the_wheel_holds_the_public_package_only(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.iterdir()
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        metadata = archive.read(f"remora-{remora.__version__}.dist-info/METADATA").decode()
    info = f"remora-{remora.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"remora", info}
    packed = {name for name in names if name.startswith("remora/")}
    assert packed == {name for name in texts() if name.startswith("remora/")}
    assert f"{info}/entry_points.txt" in names
    assert f"{info}/licenses/LICENSE" in names
    assert "License-Expression: Apache-2.0" in metadata
    # Type checkers of those who install it read its types.
    assert "remora/py.typed" in names


def test_the_license_is_the_one_that_the_package_names_to_the_letter() -> None:
    project = tomllib.loads(texts()["pyproject.toml"])["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    digest = hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest()
    assert digest == "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30", (
        "the text as it is published"
    )


def test_the_version_stands_in_one_more_place_only() -> None:
    project = tomllib.loads(texts()["pyproject.toml"])["project"]
    assert project["version"] == remora.__version__


def test_every_locked_requirement_is_exact_and_has_hashes() -> None:
    others = (texts()[f"requirements/{of}.txt"].partition("\n")[2] for of in ("deepspeed", "transformers"))
    lock = texts()["requirements/lock.txt"] + "".join(others)
    assert "://" not in lock
    requirements = re.sub(r"\\\n\s*", "", lock).strip().splitlines()
    loose = [
        line[:60]
        for line in requirements
        if not re.match(r"[a-z0-9.-]+(\[[\w,-]+\])?==[^ ]+ .*--hash=sha256:", line)
    ]
    assert loose == []


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads(texts()["pyproject.toml"])["project"]
    wanted = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    locked = set(
        re.findall(r"^([a-z0-9.-]+)(?:\[[\w,-]+\])?==", texts()["requirements/lock.txt"], re.MULTILINE)
    )
    for of in ("deepspeed", "transformers"):
        locked |= set(re.findall(r"^([a-z0-9.-]+)==", texts()[f"requirements/{of}.txt"], re.MULTILINE))
    names = {re.split(r"[\[<>=!~; ]", one)[0].lower().replace("_", "-") for one in wanted}
    assert names - locked - {"torch"} == set()


def test_nobody_is_told_to_install_what_no_index_has() -> None:
    extras = tomllib.loads(texts()["pyproject.toml"])["project"]["optional-dependencies"]
    for name, text in texts().items():
        if not name.startswith("tests/"):
            assert not re.search(r"pip install [\"']?remora\b", text), name
        for asked in re.findall(r"pip install \"CHECKOUT\[([\w,]+)\]", text):
            assert set(asked.split(",")) <= set(extras), name


def test_pytorch_is_pinned_in_one_place() -> None:
    pinned = [name for name, text in texts().items() if re.search(r"\btorch==[0-9]", text)]
    assert pinned == ["requirements/torch.txt"]
