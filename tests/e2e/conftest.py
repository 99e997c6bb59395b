"""One embedded service for all scenarios; each of them gives it back running, with no job on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from remora import Client
from tests.e2e.embedded import Embedded
from tests.e2e.raw_http import RawClient


@pytest.fixture(scope="session")
def shared_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """`remora up` with two nodes of one CPU; at the end nothing of it is left."""
    # Scripts of these tests write into folders of the tests, which are closed to other users.
    embedded = Embedded(tmp_path_factory.mktemp("remora") / "home", variables={"REMORA_ISOLATION": "none"})
    try:
        embedded.start()
        yield embedded
    finally:
        embedded.end()


@pytest.fixture
def service(shared_service: Embedded) -> Iterator[Embedded]:
    """The service, without jobs; whatever a test asked of it, it made no mistake of its own."""
    yield shared_service
    shared_service.tidy()
    said = shared_service.log("api")
    assert "Traceback" not in said, said[-3000:]
    counted = RawClient(shared_service.url).send("GET", "/metrics").body.decode()
    assert 'status="200"' in counted
    assert 'status="500"' not in counted, [line for line in counted.splitlines() if '"500"' in line]


@pytest.fixture
def client(service: Embedded) -> Iterator[Client]:
    """A client of it, for one test."""
    with service.client() as client:
        yield client


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a test's code."""
    code = tmp_path / "code"
    code.mkdir()
    return code
