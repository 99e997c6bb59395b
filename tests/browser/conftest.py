"""The browser of each file of tests, and a service of which nothing runs but the API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.settings import Settings
from tests.browser.api_server import api_server
from tests.browser.chromium import chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def api_settings(tmp_path: Path) -> Settings:
    """Of an API without a controller: its jobs wait."""
    settings = Settings(home=tmp_path / "home")
    settings.home.mkdir()
    return settings


@pytest.fixture
def api(api_settings: Settings) -> Iterator[str]:
    """The address of that API."""
    with api_server(api_settings) as address:
        yield address
