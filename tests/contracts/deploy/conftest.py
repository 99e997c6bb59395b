"""A subscription for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contracts.deploy.subscription import Subscription


@pytest.fixture
def azure(tmp_path: Path) -> Iterator[Subscription]:
    with Subscription(tmp_path) as subscription:
        yield subscription
