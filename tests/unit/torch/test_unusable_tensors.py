"""A tensor that cannot be sent is the script's error, and no worker is lost by it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
import torch

from remora.free_ports import free_port
from remora.script.link import Rendezvous
from remora.torch.group import Group, PeerLost, form


def errors_of_a_pair(collective: Callable[[Group], None]) -> list[BaseException]:
    """What it raises on each of two ranks, which are threads of this process."""
    port = free_port()
    raised: list[BaseException] = []

    def run(rank: int) -> None:
        group = form(Rendezvous(1, rank, 2, 0, 1, 0, "127.0.0.1", port), check=lambda: None, on_cuda=False)
        try:
            collective(group)
        except RuntimeError as error:
            raised.append(error)
        one = torch.ones(1)
        group.wait(group.sum(one))
        assert one.item() == 2.0, "the group works as before"

    pair = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for one in pair:
        one.start()
    for one in pair:
        one.join(60.0)
    return raised


def sum_of_a_type_without_sums(group: Group) -> None:
    group.wait(group.sum(torch.ones(4, dtype=torch.int16)))


def gather_into_too_little(group: Group) -> None:
    group.wait(group.gather(torch.ones(7), torch.ones(4)))


@pytest.mark.parametrize("collective", [sum_of_a_type_without_sums, gather_into_too_little])
def test_the_error_is_raised_as_it_is(collective: Callable[[Group], None]) -> None:
    raised = errors_of_a_pair(collective)
    assert len(raised) == 2
    assert not any(isinstance(error, PeerLost) for error in raised)
