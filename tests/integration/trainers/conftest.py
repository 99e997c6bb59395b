"""One Ray cluster for all attempts of this folder's tests: Ray connects a process to one cluster at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.integration.trainers.lab import Lab, open_lab

_FOLDER = Path(__file__).parent


class _Shared:
    """The cluster of this process, from the first test of the folder to the last one in a row."""

    def __init__(self) -> None:
        self._lab: Lab | None = None
        self._open = contextlib.ExitStack()

    def lab(self, factory: pytest.TempPathFactory) -> Lab:
        if self._lab is None:
            self._lab = self._open.enter_context(open_lab(factory.mktemp("home"), factory.mktemp("lab")))
        return self._lab

    def close(self) -> None:
        self._lab = None
        self._open.close()


_shared = _Shared()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """The cluster ends before a test of another folder starts its own; a fixture's scope cannot say that."""
    try:
        yield
    finally:
        if nextitem is None or not nextitem.path.is_relative_to(_FOLDER):
            _shared.close()


@pytest.fixture
def cluster_lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """One head for all tests of this folder; every test says how many nodes it needs."""
    return _shared.lab(tmp_path_factory)


@pytest.fixture
def lab(cluster_lab: Lab) -> Iterator[Lab]:
    """The same, with every attempt of a test ended and nothing of it left."""
    yield cluster_lab
    cluster_lab.close_attempts()
