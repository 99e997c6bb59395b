"""A state travels in messages of bounded size, one at a time, and arrives bit by bit."""

from __future__ import annotations

import copy
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remora.free_ports import free_port
from remora.script.link import Rendezvous
from remora.torch.group import Group, PeerLost, form
from remora.torch.state import receive, send
from remora.torch.state_messages import messages, parts_of, share

CPU = torch.device("cpu")

#: Bytes of a message where a test does not say otherwise: large tensors are cut, and small ones are together.
LIMIT = 256


def in_a_pair(act: Callable[[Group], Any]) -> list[Any]:
    """What it returns on each of two ranks, which are threads of this process."""
    port = free_port()
    results: list[Any] = [None, None]

    def run(rank: int) -> None:
        group = form(Rendezvous(1, rank, 2, 0, 1, 0, "127.0.0.1", port), check=lambda: None, on_cuda=False)
        results[rank] = act(group)
        group.wait(group.sum(torch.ones(1)))

    pair = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for one in pair:
        one.start()
    for one in pair:
        one.join(60.0)
    return results


def of_all_kinds() -> list[torch.Tensor]:
    """Tensors of many types, sizes and layouts, with bits that no arithmetic would keep."""
    generator = torch.Generator().manual_seed(1)

    def bits(count: int) -> torch.Tensor:
        return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=generator)

    types = [torch.float32, torch.float64, torch.bfloat16, torch.float8_e4m3fn, torch.int16, torch.complex128]
    return [
        *(bits(7 * one.itemsize).view(one) for one in types),
        torch.tensor([True, False, True]),
        torch.tensor(3.5, dtype=torch.float64),
        torch.empty(0, 5),
        bits(4 * 1000).view(torch.float32),
        bits(4 * 3 * 1000).view(torch.float32).view(3, 1000),
        bits(4 * 3 * 500).view(torch.float32).view(500, 3).t(),
        bits(4 * 2 * 3 * 8 * 8).view(torch.float32).view(2, 3, 8, 8).to(memory_format=torch.channels_last),
        bits(4 * 30).view(torch.float32)[::2],
        torch.arange(100.0),
    ]


def bits_of(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(-1).view(torch.uint8).tolist() if tensor.numel() else []


@pytest.mark.parametrize("limit", [16, LIMIT, 1 << 20])
def test_all_types_and_layouts_arrive_bit_by_bit(limit: int) -> None:
    sent = of_all_kinds()

    def act(group: Group) -> list[torch.Tensor]:
        own = sent if group.rank == 0 else [torch.zeros_like(one) for one in sent]
        share(group, own, limit=limit)
        return own

    before = [bits_of(one) for one in sent]
    here, there = in_a_pair(act)
    assert [bits_of(one) for one in there] == before
    assert [bits_of(one) for one in here] == before, "who sends only reads"


def test_layouts_may_differ_between_the_ends() -> None:
    """The messages depend on shapes and types alone."""
    whole = torch.arange(600.0).view(20, 30)

    def act(group: Group) -> torch.Tensor:
        own = whole if group.rank == 0 else torch.zeros(30, 20).t()
        share(group, [own], limit=LIMIT)
        return own

    assert torch.equal(in_a_pair(act)[1], whole)


@given(st.lists(st.integers(0, 7), max_size=4), st.integers(8, 200))
def test_parts_are_the_tensor_in_order(shape: list[int], limit: int) -> None:
    tensor = torch.arange(math.prod(shape), dtype=torch.int64).view(shape)
    parts = list(parts_of(tensor, limit))
    assert all(0 < one.numel() * 8 <= limit for one in parts)
    assert [number for one in parts for number in one.reshape(-1).tolist()] == list(range(tensor.numel()))
    assert all(one.untyped_storage().data_ptr() == tensor.untyped_storage().data_ptr() for one in parts)


@given(st.lists(st.tuples(st.integers(0, 60), st.sampled_from([1, 2, 8])), max_size=12), st.integers(16, 300))
def test_messages_are_bounded_and_as_few_as_their_order_allows(
    kinds: list[tuple[int, int]], limit: int
) -> None:
    types = {1: torch.uint8, 2: torch.int16, 8: torch.int64}
    tensors = [torch.zeros(count, dtype=types[width]) for count, width in kinds]
    made = list(messages(tensors, limit))
    ends = [one[-1][0] + one[-1][1].numel() * one[-1][1].element_size() for one in made]
    assert all(0 < end <= limit for end in ends)
    assert all(offset % 16 == 0 for one in made for offset, _ in one)
    assert sum(part.numel() for one in made for _, part in one) == sum(one.numel() for one in tensors)
    for one, following, end in zip(made, made[1:], ends, strict=False):
        first = following[0][1]
        assert -(-end // 16) * 16 + first.numel() * first.element_size() > limit, (
            f"{one} had capacity for more"
        )


class Counting:
    """A group of which broadcasts are counted, and the bytes of the tensors that it was given and has not let go of."""

    world_size = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.under_way: set[int] = set()
        self.most_under_way = 0
        self.sizes: list[int] = []
        self.memories: set[int] = set()

    def broadcast(self, tensor: torch.Tensor, root: int) -> int:
        number = len(self.sizes)
        self.sizes.append(tensor.numel() * tensor.element_size())
        self.memories.add(tensor.untyped_storage().data_ptr())
        self.under_way.add(number)
        self.most_under_way = max(self.most_under_way, len(self.under_way))
        return number

    def wait(self, ticket: int) -> None:
        self.under_way.remove(ticket)

    def forget_done(self) -> None:
        assert not self.under_way


@pytest.mark.parametrize("rank", [0, 1])
def test_one_message_is_under_way_and_two_buffers_serve_all(rank: int) -> None:
    group, tensors = Counting(rank), [torch.zeros(20) for _ in range(50)]
    share(group, [*tensors, torch.zeros(5000)], limit=LIMIT)  # type: ignore[arg-type]
    assert group.most_under_way == 1
    assert max(group.sizes) <= LIMIT
    # The large one is sent from where it lies.
    assert len(group.memories) == (3 if rank == 0 else 2)


class Losing(Counting):
    """A group that loses its peer in the second message."""

    def wait(self, ticket: int) -> None:
        if ticket == 1:
            raise PeerLost("a peer was lost")
        super().wait(ticket)


def test_what_a_collective_that_was_left_still_writes_reaches_no_tensor() -> None:
    group, own = Losing(1), torch.zeros(5000)
    with pytest.raises(PeerLost):
        share(group, [own], limit=LIMIT)  # type: ignore[arg-type]
    assert own.untyped_storage().data_ptr() not in group.memories


def moved(state: dict[str, Any], into: dict[str, Any] | None) -> dict[str, Any]:
    """What arrives of a state."""

    def act(group: Group) -> Any:
        return send(group, state, CPU) if group.rank == 0 else receive(group, CPU, into)

    arrived: dict[str, Any] = in_a_pair(act)[1]
    return arrived


def test_a_worker_without_a_state_receives_into_its_own_tensors() -> None:
    model = torch.nn.Linear(30, 40)
    own = copy.deepcopy(model)
    state = {"model": model.state_dict(), "step": 7, "more": [torch.ones(3), (torch.zeros(2, 2), "text")]}
    arrived = moved(state, {"model": own.state_dict(), "more": [torch.zeros(4)]})
    assert arrived["model"]["weight"].data_ptr() == own.weight.data_ptr()
    assert torch.equal(own.weight, model.weight)
    assert torch.equal(arrived["more"][0], torch.ones(3)), "one of another shape is made"
    assert (arrived["step"], arrived["more"][1][1]) == (7, "text")


def test_tensors_that_share_their_memory_here_are_two_when_they_come_as_two() -> None:
    """As an average of the weights that is still the weights themselves before the first step."""
    weight = torch.zeros(5)
    arrived = moved(
        {"model": torch.ones(5), "average": torch.full((5,), 2.0)}, {"model": weight, "average": weight}
    )
    assert arrived["model"].tolist() == [1.0] * 5
    assert arrived["average"].tolist() == [2.0] * 5
    assert weight.tolist() == [0.0] * 5


def test_without_leave_nothing_of_its_own_is_overwritten() -> None:
    weight = torch.zeros(5)
    assert moved({"model": torch.ones(5)}, None)["model"].tolist() == [1.0] * 5
    assert weight.tolist() == [0.0] * 5


#: Bytes by which the memory of a process may rise over what it holds in the end.
BUDGET = 80 << 20
SCRIPT = Path(__file__).with_name("state_mover.py")


def test_neither_side_of_a_move_holds_the_state_twice() -> None:
    """200 MB of a model with Adam, between two processes; the kernel says how much memory they ever had."""
    port = free_port()
    environment = {
        **os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    pair = [
        subprocess.Popen(
            [sys.executable, str(SCRIPT)],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    said = [one.communicate(timeout=120)[0] for one in pair]
    assert [one.returncode for one in pair] == [0, 0], said
    rises = [int(re.findall(r"^rise (-?\d+)$", text, re.MULTILINE)[0]) for text in said]
    digests = [re.findall(r"^digest (\w+)$", text, re.MULTILINE)[0] for text in said]
    assert max(rises) < BUDGET, (
        f"over its own state: {rises[0] >> 20} MiB of the source, {rises[1] >> 20} of the joiner"
    )
    assert digests[0] == digests[1]
