"""The result of a step outlives the next one that does not end, and no worker overwrites what a peer may still read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from remora.free_ports import free_port
from remora.script.link import Rendezvous
from remora.torch.group import Group, PeerLost, form
from remora.torch.order import shards_of
from remora.torch.reduction import Bitwise, Reduction, SampleExact
from remora.torch.ticket import Ticket

SHARDS = 4
NOTES = 2
KINDS = [SampleExact, Bitwise]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


class Watched:
    """A group that notes which collectives begin and are waited for, in order, and keeps the tensors of those."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self.log: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self._names: dict[int, str] = {}
        self._tickets: list[Ticket | None] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def _begun(self, name: str, ticket: Ticket | None, *tensors: torch.Tensor) -> Ticket | None:
        self.log.append(name)
        self.tensors += tensors
        self._tickets.append(ticket)
        self._names[id(ticket)] = name
        return ticket

    def sum(self, tensor: torch.Tensor) -> Ticket | None:
        name = "confirm" if tensor.numel() == 1 else "reduce"
        return self._begun(name, self._group.sum(tensor), tensor)

    def exchange(
        self, received: torch.Tensor, sent: torch.Tensor, *counts: Any, **named: Any
    ) -> Ticket | None:
        return self._begun("reduce", self._group.exchange(received, sent, *counts, **named), received, sent)

    def wait(self, ticket: Ticket | None) -> None:
        self._over(ticket, self._group.wait)

    def wait_in_stream(self, ticket: Ticket | None) -> None:
        self._over(ticket, self._group.wait_in_stream)

    def _over(self, ticket: Ticket | None, wait: Callable[[Ticket | None], None]) -> None:
        wait(ticket)
        self.log.append(f"{self._names.get(id(ticket), 'other')} is over")


class Worker:
    """One rank with two parameters, whose gradients are what the test says."""

    def __init__(self, kind: type[Reduction], rank: int) -> None:
        self.rank = rank
        self.parameters = [nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(5))]
        self.reduction = kind(self.parameters, SHARDS, NOTES)

    def meet(self, generation: int, port: int) -> Watched:
        place = Rendezvous(generation, self.rank, 2, 0, 1, 0, "127.0.0.1", port)
        self.group = Watched(form(place, check=lambda: None, on_cuda=False))
        self.reduction.use(self.group)  # type: ignore[arg-type]
        return self.group

    def compute(self, step: int) -> None:
        """The backward passes of a step; its collectives begin in the last one."""
        self.reduction.begin()
        own = shards_of(self.rank, 2, SHARDS)
        for shard in own:
            if shard == own[-1]:
                self.reduction.arm()
            loss = sum((one * gradient(step, shard)).sum() for one in self.parameters)
            assert isinstance(loss, torch.Tensor)
            self.reduction.note(0, torch.tensor([float(shard)]))
            loss.backward()
            if shard != own[-1]:
                self.reduction.leaf(shard)

    def step(self, step: int) -> None:
        self.compute(step)
        self.reduction.finish()

    @property
    def gradients(self) -> list[float]:
        """What each parameter has, which is the same for all of its elements."""
        return [float(one.grad.unique()) for one in self.parameters if one.grad is not None]


def gradient(step: int, shard: int) -> float:
    return 10.0**step * (shard + 1)


def of_step(step: int) -> list[float]:
    """Gradients of a step, summed over all shards."""
    return [sum(gradient(step, shard) for shard in range(SHARDS))] * 2


def together(*acts: Callable[[], Any]) -> None:
    """Ranks act at the same time; what one of them raises is raised."""
    raised: list[BaseException] = []

    def run(act: Callable[[], Any]) -> None:
        try:
            act()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(act,)) for act in acts]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60.0)
    assert not any(one.is_alive() for one in threads)
    if raised:
        raise raised[0]


@pytest.fixture(params=KINDS)
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Worker, Worker]]:
    """Two ranks that have done a step together."""
    first, second = (Worker(request.param, rank) for rank in range(2))
    port = free_port()
    together(lambda: first.meet(1, port), lambda: second.meet(1, port))
    together(lambda: first.step(1), lambda: second.step(1))
    yield first, second
    for one in (first, second):
        one.group.abandon()


def lose_in_step_2(worker: Worker) -> None:
    """Its peer never begins the step."""
    worker.compute(2)
    worker.group.break_off("the peer is lost")
    with pytest.raises(PeerLost):
        worker.reduction.finish()
    worker.reduction.drop()


def regroup(first: Worker, second: Worker) -> None:
    for one in (first, second):
        one.group.abandon()
    port = free_port()
    together(lambda: first.meet(2, port), lambda: second.meet(2, port))


def test_both_have_the_sum_over_all_shards(pair: tuple[Worker, Worker]) -> None:
    assert [one.gradients for one in pair] == [of_step(1), of_step(1)]
    together(lambda: pair[0].step(2), lambda: pair[1].step(2))
    assert [one.gradients for one in pair] == [of_step(2), of_step(2)]


def test_a_worker_that_is_ahead_gives_the_result_to_one_that_missed_it(pair: tuple[Worker, Worker]) -> None:
    """Also after it has put its own gradients of the next step where results are reduced."""
    first, second = pair
    lose_in_step_2(first)
    second.reduction = type(second.reduction)(second.parameters, SHARDS, NOTES)
    regroup(first, second)
    together(lambda: share_of(first), lambda: share_of(second))
    assert [one.gradients for one in pair] == [of_step(1), of_step(1)]


def share_of(worker: Worker) -> None:
    part = worker.group.subgroup((0, 1), "behind")
    worker.reduction.share(part)
    worker.reduction.spread()
    part.wait(part.sum(torch.ones(1)))


def test_tensors_that_a_collective_was_left_in_are_not_used_again(pair: tuple[Worker, Worker]) -> None:
    """It may still write into them."""
    first, second = pair
    lose_in_step_2(first)
    left = {one.untyped_storage().data_ptr() for one in first.group.tensors}
    kept = first.group.tensors  # as long as they are there, no new tensor can have their memory
    regroup(first, second)
    together(lambda: first.step(2), lambda: second.step(2))
    assert not left & {one.untyped_storage().data_ptr() for one in first.group.tensors}
    assert [one.gradients for one in pair] == [of_step(2), of_step(2)]
    assert kept


def test_no_step_begins_to_be_reduced_before_all_have_confirmed_that_they_have_the_last_result(
    pair: tuple[Worker, Worker],
) -> None:
    first, second = pair
    regroup(first, second)
    first.reduction.confirm()
    late = threading.Thread(target=first.compute, args=(2,))
    late.start()
    second.reduction.confirm()
    together(lambda: second.step(2), lambda: (late.join(60.0), first.reduction.finish()))
    for one in pair:
        order = [name for name in one.group.log if name in ("confirm", "confirm is over", "reduce")]
        assert order[:3] == ["confirm", "confirm is over", "reduce"]
        assert order.count("confirm is over") == 1, "once is enough"
    assert [one.gradients for one in pair] == [of_step(2), of_step(2)]


def test_who_waits_for_a_confirmation_of_a_lost_peer_hears_of_the_loss(pair: tuple[Worker, Worker]) -> None:
    first, _ = pair
    first.reduction.confirm()
    threading.Timer(0.0, first.group.break_off, ("the peer is lost",)).start()
    with pytest.raises(PeerLost):
        first.reduction.await_confirmation()
