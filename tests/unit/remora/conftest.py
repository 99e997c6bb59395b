"""What the tests of the public package share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService, serve


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeService]:
    """A running service that the client finds by itself."""
    with serve(FakeService()) as running:
        monkeypatch.setenv("REMORA_SERVER", running.url)
        monkeypatch.setenv("REMORA_HOME", str(tmp_path / "home"))
        yield running


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """The command line, which keeps what it prints."""
    return Cli(capsys)
