"""Replaces the requirements of a job by exact versions, which uv finds before the job is submitted (`--freeze`)."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from remora.cli import output
from remora.errors import SpecError, SpecProblem
from remora.terminal_text import neutral

#: The package that nodes have themselves: its requirement stays as it is.
_INHERITED = re.compile(r"torch(?![\w.-])", re.IGNORECASE)
#: Lines of a file that are options of pip, but for other files of requirements.
_OPTION = re.compile(r"-(?!r\b|c\b|-requirement\b|-constraint\b)")
#: Bytes of a file of requirements that are looked at.
_MOST_BYTES = 4 * 2**20


def freeze(raw: dict[str, Any], folder: Path) -> None:
    """Write the exact versions of all packages into the specification, in place of its requirements.

    `folder` is that of the code.  Raises SpecError when uv finds no versions, or the requirements cannot be frozen.
    """
    from remora.spec.sections import MAX_REQUIREMENTS

    environment = raw.get("environment") or {}
    pip, file = list(environment.get("pip") or []), environment.get("requirements")
    if not pip and file is None:
        raise _problem("there is nothing to freeze: the job has neither environment.pip nor .requirements")
    lines = [] if file is None else _lines_of(folder, str(file))
    kept = [line for line in (*pip, *lines) if _INHERITED.match(line)]
    exact = _compiled(pip, file, folder, environment.get("python"))
    if len(exact) + len(kept) > MAX_REQUIREMENTS:
        raise _problem(
            f"{len(exact)} packages are more than the {MAX_REQUIREMENTS} of a list; use `uv lock`, and environment."
            "requirements: uv.lock"
        )
    raw["environment"] = {**environment, "pip": [*exact, *dict.fromkeys(kept)], "requirements": None}
    output.say(f"{len(exact)} packages are frozen")


def _lines_of(folder: Path, file: str) -> list[str]:
    """The requirements in a file.  Raises SpecError for one that cannot be frozen."""
    if file.endswith("uv.lock") or Path(file).name.startswith("pylock."):
        raise _problem(f"{file} names exact versions already; leave --freeze out")
    try:
        with (folder / file).open("rb") as opened:
            text = opened.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise _problem(f"the file {file!r} cannot be read: {error.strerror}") from None
    if file.endswith(".toml"):
        return re.findall(r"[\"'](torch(?![\w.-])[^\"']*)[\"']", text)
    lines = [line.partition(" #")[0].strip() for line in text.splitlines()]
    if (option := next((line for line in lines if _OPTION.match(line)), None)) is not None:
        raise _problem(
            f"{file} has the option {option[:60]!r}, which a list has no place for; use `uv lock` instead"
        )
    return lines


def _compiled(pip: Iterable[str], file: str | None, folder: Path, python: str | None) -> list[str]:
    """The exact requirements.  Raises SpecError."""
    beside = Path(sys.executable).with_name("uv")
    uv = str(beside) if beside.exists() else shutil.which("uv")
    if uv is None:
        raise _problem("uv, which finds the versions, is not installed here: pip install uv")
    version = python or f"{sys.version_info[0]}.{sys.version_info[1]}"
    with tempfile.TemporaryDirectory(prefix="remora-freeze-") as scratch:
        excluded, listed = Path(scratch, "excluded.txt"), Path(scratch, "listed.in")
        excluded.write_text("torch\n")
        listed.write_text("".join(f"{line}\n" for line in pip if not _INHERITED.match(line)))
        options = ["--quiet", "--no-header", "--no-annotate", "--python-version", version]
        sources = [str(listed), *([] if file is None else [str(file)])]
        done = subprocess.run(
            [uv, "pip", "compile", *options, "--excludes", str(excluded), *sources],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise _problem("uv finds no versions: " + " ".join(neutral(done.stderr).split())[-600:])
    return [line for line in done.stdout.splitlines() if line.strip() and not line.startswith("#")]


def _problem(why: str) -> SpecError:
    return SpecError([SpecProblem("environment", why)])
