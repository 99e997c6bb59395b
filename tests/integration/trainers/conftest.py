"""One Ray cluster for all attempts of this folder's tests: Ray connects a process to one cluster at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.integration.trainers.lab import Lab, open_lab


@pytest.fixture(scope="package")
def cluster_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One head for all tests of this folder; every test says how many nodes it needs."""
    with open_lab(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture
def lab(cluster_lab: Lab) -> Iterator[Lab]:
    """The same, with every attempt of a test ended and nothing of it left."""
    yield cluster_lab
    cluster_lab.close_attempts()
