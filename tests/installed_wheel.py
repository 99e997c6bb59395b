"""The wheel in a virtual environment that has what it declares and nothing else, made without any index of packages."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
import sysconfig
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def build_wheel(folder: Path) -> Path:
    """The wheel of this checkout, in the folder."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(wheel: Path, environment: Path, *extras: str) -> Path:
    """An environment with the wheel, and links to the installed packages that it requires; returns its `bin`."""
    uv = [Path(sys.executable).with_name("uv"), "--quiet"]
    subprocess.run([*uv, "venv", "--python", sys.executable, environment], check=True)
    python = environment / "bin" / "python"
    subprocess.run([*uv, "pip", "install", "--python", python, "--no-deps", "--offline", wheel], check=True)
    (packages,) = environment.glob("lib/python3*/site-packages")
    (metadata,) = packages.glob("remora-*.dist-info")
    declared = importlib.metadata.Distribution.at(metadata).requires or []
    for distribution in _required([Requirement(line) for line in declared], extras):
        _link(distribution, packages, environment / "bin")
    return environment / "bin"


def _required(declared: list[Requirement], extras: tuple[str, ...]) -> list[importlib.metadata.Distribution]:
    """The distributions that requirements name, and all that those require."""
    found: dict[str, importlib.metadata.Distribution] = {}
    open_ends = [(one, extra) for one in declared for extra in ("", *extras)]
    seen = set()
    while open_ends:
        one, extra = open_ends.pop()
        if one.marker is not None and not one.marker.evaluate({"extra": extra}):
            continue
        key = (canonicalize_name(one.name), tuple(sorted(one.extras)))
        if key in seen:
            continue
        seen.add(key)
        distribution = importlib.metadata.distribution(one.name)
        found[key[0]] = distribution
        needs = [Requirement(line) for line in distribution.requires or []]
        open_ends += [(need, wanted) for need in needs for wanted in ("", *one.extras)]
    return list(found.values())


def _link(distribution: importlib.metadata.Distribution, packages: Path, programs: Path) -> None:
    """Link what a distribution has in the folder of packages, and its programs that are not written in Python."""
    installed = Path(sysconfig.get_path("purelib"))
    for file in distribution.files or []:
        first = file.parts[0]
        if first == ".." and file.parts[-2] == "bin":
            program = Path(distribution.locate_file(file)).resolve()
            if program.is_file() and program.read_bytes()[:4] == b"\x7fELF":
                (programs / program.name).symlink_to(program)
        elif first != ".." and first != "__pycache__" and not (packages / first).exists():
            (packages / first).symlink_to(installed / first)
