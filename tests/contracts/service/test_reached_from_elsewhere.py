"""An API that other machines reach: by its public name, over TLS, and past its proxy only for this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn
from fastapi.testclient import TestClient
from uvicorn.server import ServerState

from service.api.app import create_app
from service.api.connections import GuardedProtocol
from service.listening import listening
from service.settings import Settings

NAME = "https://remora.example.com"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path / "home",
        host="10.0.0.5",
        authentication="required",
        trusted_proxies="10.0.0.1",
        public_url=NAME,
    )


@pytest.fixture
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings), base_url=NAME) as opened:
        yield opened


def test_it_answers_by_its_public_name_to_pages_of_its_own(client: TestClient) -> None:
    for headers in ({}, {"Origin": NAME}, {"Sec-Fetch-Site": "same-origin"}):
        assert client.get("/healthz", headers=headers).status_code == 200
    for origin in (
        "https://elsewhere.example",
        "http://remora.example.com",
        "https://remora.example.com:444",
    ):
        assert client.get("/healthz", headers={"Origin": origin}).json()["code"] == "foreign_origin"


def test_another_name_is_refused_with_the_ones_that_it_has(client: TestClient) -> None:
    answer = client.get("/healthz", headers={"Host": "rebound.example"})
    assert (answer.status_code, answer.json()["code"]) == (421, "unknown_host")
    assert "10.0.0.5, remora.example.com" in answer.json()["detail"]


def test_what_crossed_the_network_in_clear_is_refused(client: TestClient) -> None:
    answer = client.get("http://remora.example.com/healthz")
    assert (answer.status_code, answer.json()["code"]) == (403, "tls_required")


def test_nothing_is_answered_without_a_token(client: TestClient) -> None:
    assert client.get("/v1/jobs").status_code == 401
    assert client.get("/metrics").status_code == 401


class Transport:
    """The end of a connection from an address, which keeps what is sent."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.sent = b""
        self.is_closed = False

    def get_extra_info(self, name: str) -> object:
        return (self.address, 50000) if name in ("peername", "sockname") else None

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.is_closed = True

    def is_closing(self) -> bool:
        return self.is_closed


@pytest.mark.parametrize(
    ("address", "is_let_in"), [("10.0.0.1", True), ("127.0.0.1", True), ("10.0.0.9", False)]
)
def test_only_the_proxy_and_this_machine_connect_without_tls(
    settings: Settings, address: str, is_let_in: bool
) -> None:
    async def connect() -> tuple[bool, bytes]:
        config = uvicorn.Config(create_app(settings), log_config=None)
        config.load()
        protocol = GuardedProtocol(
            config=config, server_state=ServerState(), app_state={}, reached=listening(settings)
        )
        transport = Transport(address)
        protocol.connection_made(transport)  # type: ignore[arg-type]
        was_closed = transport.is_closed
        protocol.connection_lost(None)
        return was_closed, transport.sent

    was_closed, sent = asyncio.run(connect())
    assert was_closed is not is_let_in
    assert sent.startswith(b"HTTP/1.1 403 Forbidden") is not is_let_in
