"""The agent's side of the head with a real process behind it, while the head says nothing."""

from __future__ import annotations

import multiprocessing
import socket
import threading

import pytest

from cluster.node.agent.head_client import RayHead


@pytest.mark.parametrize("is_asked", [True, False])
def test_closing_leaves_no_process_and_no_thread(*, is_asked: bool) -> None:
    before = {*threading.enumerate(), *multiprocessing.active_children()}
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(60.0)
        head = RayHead(f"127.0.0.1:{silent.getsockname()[1]}", "node_a")
        head.start()
        if is_asked:  # else the process may be anywhere between wanted and started
            silent.accept()[0].close()
        head.close()
    assert {*threading.enumerate(), *multiprocessing.active_children()} - before == set()
