"""The workers of a group connect to the store that rank 0 serves, also those that start before it."""

from __future__ import annotations

import socket
import threading
from typing import Any

import pytest
import torch.distributed as dist

from remora.free_ports import free_port
from remora.script.link import Rendezvous
from remora.torch import backends


def second_of_two(address: str, port: int) -> Rendezvous:
    return Rendezvous(
        generation=2, rank=1, world_size=2, local_rank=0, local_world_size=1, node_rank=1,
        master_addr=address, master_port=port,
    )  # fmt: skip


def test_a_worker_that_comes_first_asks_for_the_store_when_rank_0_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    port, refused, listening = free_port(), threading.Event(), threading.Event()
    asked: list[bool] = []
    connect = socket.create_connection

    def connects(*arguments: Any, **named: Any) -> socket.socket:
        try:
            return connect(*arguments, **named)
        except ConnectionRefusedError:
            refused.set()
            raise

    def store(*_: Any, **named: Any) -> str:
        assert not named["is_master"]
        asked.append(listening.is_set())
        return "store"

    monkeypatch.setattr(socket, "create_connection", connects)
    monkeypatch.setattr(dist, "TCPStore", store)
    monkeypatch.setattr(dist, "PrefixStore", lambda _, found: found)
    worker = threading.Thread(target=backends.rendezvous_store, args=(second_of_two("127.0.0.1", port),))
    worker.start()
    assert refused.wait(10.0)
    with socket.create_server(("127.0.0.1", port)):
        listening.set()
        worker.join(10.0)
    assert asked == [True]


def test_an_address_that_is_none_is_left_to_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(dist, "TCPStore", lambda address, *_, **__: asked.append(address))
    monkeypatch.setattr(dist, "PrefixStore", lambda _, found: found)
    backends.rendezvous_store(second_of_two("no host.invalid", 1))
    assert asked == ["no host.invalid"]
