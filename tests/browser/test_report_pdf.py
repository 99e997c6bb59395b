"""The report of a week as PDF, printed by the real Chromium."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from remora.cli.printing import BROWSERS, print_page
from remora.cli.report import page_of
from remora.errors import ConfigurationError
from remora.views import CostLine, CostReport, GoodputReport
from tests.needed import is_missing

DAY_S = 86_400.0


@pytest.fixture
def page() -> str:
    """A report of more lines than a sheet has."""
    goodput = GoodputReport(
        since=0.0,
        until=7 * DAY_S,
        trained_node_s=1800.0,
        node_s=3600.0,
        gpu_s=0.0,
        cost=1.0,
        goodput=0.5,
        sentence="Half of it trained.",
        losses=[],
    )
    lines = [
        CostLine(of={"job": f"job_{number}"}, node_s=3600.0, gpu_s=0.0, cost=0.5) for number in range(25)
    ]
    table = CostReport(
        since=0.0,
        until=7 * DAY_S,
        by=["job"],
        lines=lines,
        node_s=90_000.0,
        gpu_s=0.0,
        cost=12.5,
        sentence="",
    )
    return page_of(goodput, [table, table, table])


def test_the_report_is_printed_on_sheets_of_a4_that_say_what_they_are(page: str, tmp_path: Path) -> None:
    if not any(map(shutil.which, BROWSERS)):
        is_missing("the report is printed by Chromium: make test-tools browser")
    file = tmp_path / "week.pdf"
    print_page(page, file)
    content = file.read_bytes()
    assert content.startswith(b"%PDF-")
    sheets = re.findall(rb"/Type /Page\b", content)
    assert len(sheets) >= 2
    assert len(re.findall(rb"/MediaBox \[0 0 59[45][.\d]* 84[12][.\d]*\]", content)) == len(sheets)
    assert b"Remora: " in content, "its title"


def test_without_a_browser_nothing_is_written_and_one_sentence_says_how_to_print(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match="none on the PATH: write the page"):
        print_page(page, tmp_path / "week.pdf")
    assert not (tmp_path / "week.pdf").exists()


def test_a_browser_that_fails_is_quoted_and_nothing_is_written(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\necho it has no display >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    with pytest.raises(ConfigurationError, match="printed nothing: it has no display"):
        print_page(page, tmp_path / "week.pdf")
    assert not (tmp_path / "week.pdf").exists()
