"""Releases: a virtual environment for each wheel, and the link that says which one is in force."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import psutil

from cluster.ray.job_api import PORT_VARIABLE
from service.installation.layout import InstallationProblem, Layout

#: The file in a release that is written last: it is whole.
_WHOLE = ".complete"
#: In a release that uses the packages of another interpreter: where these are.
_LAYERS = "_0_layers.pth"
_WHEEL = re.compile(r"remora-([A-Za-z0-9.!+]+)-py3-none-any\.whl")
#: Lines of pip's complaint that are shown.
_SHOWN = 3


def name_of(wheel: Path) -> str:
    """The name of the release of a wheel: its version, and the beginning of its digest.

    Raises InstallationProblem when the file is no wheel of Remora.
    """
    match = _WHEEL.fullmatch(wheel.name)
    if match is None:
        raise InstallationProblem(
            f"{wheel} is no wheel of Remora: its name is remora-VERSION-py3-none-any.whl"
        )
    try:
        digest = hashlib.file_digest(wheel.open("rb"), "sha256").hexdigest()
    except OSError as error:
        raise InstallationProblem(f"{wheel} cannot be read: {error}") from None
    return f"{match[1]}-{digest[:12]}"


def packages_beside(settings: Mapping[str, str]) -> list[str]:
    """What pip installs beside the service, by the settings of the installation (pure)."""
    serves_jobs = settings.get(PORT_VARIABLE, "").strip() not in ("", "0")
    # Without a version: that of Ray follows from the service's.
    return ["ray[default]"] if serves_jobs else []


def make(layout: Layout, wheel: Path, python: str, packages_of: str = "") -> str:
    """Install the wheel as a release, unless it is there already; returns its name.

    `python` is the interpreter of the environment.  `packages_of`: another interpreter whose installed packages are
    used in place of an index; otherwise pip installs what the wheel requires for the service.  Killed in between, the
    next call begins again.  Raises InstallationProblem.
    """
    release = name_of(wheel)
    folder = layout.releases / release
    if (folder / _WHOLE).exists():
        bring_packages(layout, release)
        return release
    shutil.rmtree(folder, ignore_errors=True)
    layout.releases.mkdir(parents=True, exist_ok=True)
    _call([python, "-m", "venv", *(["--without-pip"] if packages_of else []), str(folder)])
    inside = str(folder / "bin" / "python")
    if packages_of:
        pip = [packages_of, "-m", "pip", f"--python={inside}", "--disable-pip-version-check"]
        _call([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)])
        # Afterwards: pip would find a Remora of the other environment.
        _layer(folder, packages_of)
    else:
        pip = [inside, "-m", "pip", "--disable-pip-version-check"]
        more = packages_beside(layout.read_settings())
        _call(
            [*pip, "install", "--quiet", f"remora[service,azure,tracing] @ {wheel.resolve().as_uri()}", *more]
        )
    (folder / _WHOLE).touch()
    return release


def bring_packages(layout: Layout, release: str) -> None:
    """Install what a setting needs that may have come since the release was made.  Raises InstallationProblem.

    One that uses the packages of another interpreter gets none.
    """
    folder = layout.releases / release
    more = packages_beside(layout.read_settings())
    if more and not list(folder.glob(f"lib/python3*/site-packages/{_LAYERS}")):
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
        _call([*pip, "install", "--quiet", *more])


def put_in_force(layout: Layout, release: str) -> None:
    """Let every process that is started from now on be of this release."""
    draft = layout.current.with_name("current.draft")
    draft.unlink(missing_ok=True)
    draft.symlink_to(layout.releases / release)
    draft.replace(layout.current)


def in_use(layout: Layout) -> set[str]:
    """Names of the releases that a process of this machine runs from, nodes of a local cluster among them."""
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        for word in process.info["cmdline"] or ():
            path = Path(word)
            if path.is_relative_to(layout.releases) and path != layout.releases:
                found.add(path.relative_to(layout.releases).parts[0])
    return found


def migrations_of(layout: Layout, release: str) -> Path:
    """The folder with the migrations of a release's schema; it may not be there."""
    found = (layout.releases / release).glob(
        "lib/python3*/site-packages/remora/_server/service/store/migrations"
    )
    return next(found, layout.releases / release / "migrations")


def remove_others(layout: Layout, kept: set[str]) -> list[str]:
    """Remove the releases that are not among these; returns their names."""
    found = sorted(path.name for path in layout.releases.iterdir() if path.is_dir())
    others = [name for name in found if name not in kept]
    for name in others:
        shutil.rmtree(layout.releases / name, ignore_errors=True)
    return others


def _layer(folder: Path, python: str) -> None:
    """Let an environment find the packages of another one, after its own."""
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=False,
    )
    if found.returncode:
        raise InstallationProblem(f"{python} is no interpreter of Python: {found.stderr.strip()[-200:]}")
    (packages,) = folder.glob("lib/python3*/site-packages")
    # Not `site.addsitedir`: the path files of the other environment would bring the Remora that is installed there.
    (packages / _LAYERS).write_text(found.stdout, encoding="utf-8")


def _call(command: list[str]) -> None:
    environment = {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        words = [line.strip() for line in done.stderr.splitlines() if line.strip()][-_SHOWN:]
        raise InstallationProblem(
            f"`{' '.join(Path(command[0]).name if not i else word for i, word in enumerate(command[:4]))} ...`"
            f" failed: {' / '.join(words)[:600]}"
        )


def this_python() -> str:
    """The interpreter that runs, outside of its virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", "") or sys.executable)
