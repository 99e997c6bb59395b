"""Prints a page as PDF by the Chromium or Chrome of this machine: it draws text as readers of the page see it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from remora.errors import ConfigurationError
from remora.terminal_text import neutral

#: Names of programs that print with the same options, on the PATH.
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "microsoft-edge")
#: Seconds in which it prints a page.
_PATIENCE_S = 120.0


def print_page(page: str, file: Path) -> None:
    """Write `page`, an HTML document that loads nothing, as PDF.  Raises ConfigurationError, a sentence."""
    program = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if program is None:
        raise ConfigurationError(
            "a PDF is printed by Chromium or Chrome, and there is none on the PATH:"
            " write the page (-o remora-report.html) and print it in any browser"
        )
    with tempfile.TemporaryDirectory(prefix="remora-") as folder:
        source, made = Path(folder, "page.html"), Path(folder, "page.pdf")
        source.write_text(page, encoding="utf-8")
        said = _run([program, *_options(folder), f"--print-to-pdf={made}", source.as_uri()])
        if not made.exists():
            raise ConfigurationError(
                f"{program} printed nothing: {neutral(said[-300:].strip()) or 'no reason given'}"
            )
        try:
            shutil.copyfile(made, file)
        except OSError as error:
            raise ConfigurationError(f"{neutral(str(file))} cannot be written: {error.strerror}") from error


def _options(folder: str) -> list[str]:
    # A profile of its own: a browser that runs already would take the request over, and end at once.
    options = ["--headless", "--disable-gpu", "--no-pdf-header-footer", f"--user-data-dir={folder}/profile"]
    # Its sandbox refuses to run as root; the page has no scripts.
    return [*options, "--no-sandbox"] if os.geteuid() == 0 else options


def _run(command: list[str]) -> str:
    """What it said, whether it did what was asked or not."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {_PATIENCE_S:.0f} s"
    except OSError as error:
        return str(error.strerror)
    return done.stderr
