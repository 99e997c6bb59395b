"""Ports for servers: free on every address of the machine, and not of those that outgoing connections take."""

from __future__ import annotations

import random
import socket

import pytest

from remora import free_ports


@pytest.mark.parametrize("host", ["", "127.0.0.1", "127.65.3.1"])
def test_a_free_port_can_be_listened_on_and_is_outside_the_kernels_range(host: str) -> None:
    port = free_ports.free_port(host)
    assert 20000 <= port < 30000
    with socket.socket() as server:
        server.bind((host, port))
        server.listen()


def test_a_port_that_is_taken_on_one_address_is_not_free_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        taken = free_ports.free_port("127.65.3.1")
        server.bind(("127.65.3.1", taken))
        server.listen()
        other = free_ports.free_port()
        drawn = iter([taken, other])
        monkeypatch.setattr(free_ports._random, "randint", lambda _first, _last: next(drawn))
        assert free_ports.free_port() == other


def test_without_a_free_port_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as server:
        taken = free_ports.free_port("127.65.3.1")
        server.bind(("127.65.3.1", taken))
        server.listen()
        monkeypatch.setattr(free_ports._random, "randint", lambda _first, _last: taken)
        with pytest.raises(OSError, match="no free TCP port"):
            free_ports.free_port()


def test_processes_that_seed_alike_try_other_ports() -> None:
    tried: list[list[int]] = []
    for _ in range(2):
        random.seed(7)
        tried.append([free_ports.free_port("127.0.0.1") for _ in range(4)])
    assert tried[0] != tried[1]
