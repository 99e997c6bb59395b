"""A supervisor with a real child, and its driver, which tests play."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.trainers import supervisor_stage
from tests.unit.trainers.supervisor_stage import Driver, Stage


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    """The driver, reached without Ray."""
    played = Driver()
    supervisor_stage.without_ray(played, tmp_path, monkeypatch)
    return played


@pytest.fixture
def stage(driver: Driver, tmp_path: Path) -> Iterator[Stage]:
    """Where one supervisor is started."""
    played = Stage(driver, tmp_path)
    yield played
    played.close()
