"""On GPUs streams wait for collectives: the host waits once in a step, and no step counts that a loss has spoiled."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import ErrorType
from torch.distributed.fsdp import fully_shard

from remora import training
from remora.script.link import Rendezvous
from remora.torch import Loop, buckets, device_watch, group
from remora.torch.group import PeerLost
from remora.torch.sharded import ShardedLoop
from remora.torch.sharded.sharded_training import ShardedTraining
from tests.unit.torch.gpu_double import (
    FOR_EVER_S,
    Event,
    Gpu,
    install,
    train_with,
    two_workers,
    uninstall,
    watchers,
)

DATA = torch.arange(64.0).view(16, 4) / 64
ARGUMENTS: dict[str, Any] = {"data": DATA, "global_batch": 4, "shards": 2, "seed": 3, "check_every": 0}


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    yield install(monkeypatch)
    uninstall()


def squared(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


# --- one wait per step ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("collectives", [10, 100])
def test_the_host_waits_once_for_all_collectives_of_a_step(gpu: Gpu, collectives: int) -> None:
    whole = two_workers(gpu)
    part = whole.subgroup([0, 1], "part")
    tensor = torch.ones(3)
    for _ in range(3):
        for ticket in [one.sum(tensor) for one in (whole, part) for _ in range(collectives)]:
            whole.wait_in_stream(ticket)
        assert gpu.queries == 0, "no look at the device before the host waits"
        whole.synchronize()
        gpu.queries = 0
    assert whole.host_waits == 3
    assert gpu.stream_waits == 6 * collectives
    whole.synchronize()
    assert whole.host_waits == 3, "there is nothing to wait for"
    whole.abandon()


@pytest.mark.parametrize("layers", [4, 40])
@pytest.mark.parametrize("exactness", ["sample-exact", "bitwise"])
def test_a_step_of_loop_waits_once(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, exactness: Any, layers: int
) -> None:
    formed = train_with(monkeypatch, gpu)
    monkeypatch.setattr(buckets, "_FIRST_BYTES", 1)
    monkeypatch.setattr(buckets, "_BUCKET_BYTES", 1)
    model = nn.Sequential(*(nn.Linear(4, 4, bias=False) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    host_waits, stream_waits = [], []
    for step in Loop(model, optimizer, **ARGUMENTS, total_steps=4, exactness=exactness):
        before = formed[0].host_waits, gpu.stream_waits
        step.backward(squared)
        host_waits.append(formed[0].host_waits - before[0])
        stream_waits.append(gpu.stream_waits - before[1])
        optimizer.step()
    # Before the first one all workers confirm that they have the common state.
    assert host_waits == [2, 1, 1, 1]
    assert min(stream_waits) >= layers


def build(layers: int) -> Any:
    def build(mesh: Any) -> Any:
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
        for one in model:
            fully_shard(one, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    return build


@pytest.mark.parametrize("layers", [3, 30])
def test_a_step_of_fsdp_waits_once(gpu: Gpu, monkeypatch: pytest.MonkeyPatch, layers: int) -> None:
    formed = train_with(monkeypatch, gpu)
    loop = ShardedLoop(build(layers), **ARGUMENTS, total_steps=3)
    host_waits = []
    for step in loop:
        before = formed[0].host_waits
        step.backward(squared)
        host_waits.append(formed[0].host_waits - before)
        loop.optimizer.step()
    assert host_waits == [1, 1, 1]
    assert formed[0].host_waits == 3, (
        "nor does the end of a step wait where the script has begun no collective"
    )


def test_a_layer_computes_its_gradients_while_those_of_the_one_behind_it_are_reduced(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    formed = train_with(monkeypatch, gpu)
    loop = ShardedLoop(build(3), **ARGUMENTS, total_steps=1)
    waits: list[int] = []
    for step in loop:
        for number, layer in enumerate(loop.model):
            layer.register_full_backward_pre_hook(
                lambda *_, number=number: gpu.order.append(f"layer {number}")
            )
        gpu.before = lambda name: waits.append(formed[0].host_waits)
        gpu.order.clear()
        step.backward(squared)
        gpu.before = lambda name: None
        loop.optimizer.step()
        trace = [one for one in gpu.order if one != "gather"]
    # On processors the exchange of a reduce-scatter is an all-to-all.
    assert trace[:7] == ["layer 2", "exchange", "layer 1", "exchange", "layer 0", "exchange", "sum"]
    assert max(waits) == 0, "the first wait is the one behind the sums"


def test_on_processors_the_host_waits_for_each_collective(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    formed = train_with(monkeypatch, gpu, on_cuda=False)
    loop = ShardedLoop(build(3), **ARGUMENTS, total_steps=3)
    waits = []
    for step in loop:
        before = gpu.blocking_waits
        step.backward(squared)
        waits.append(gpu.blocking_waits - before)
        loop.optimizer.step()
    # Each layer is gathered once or twice and reduced once.
    assert min(waits) >= 2 * 3
    assert formed[0].host_waits == 0
    assert not watchers()


# --- a peer is lost ---------------------------------------------------------------------------------------------------


def test_a_peer_that_never_answers_is_found_by_the_watcher(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "COLLECTIVE_TIMEOUT", datetime.timedelta(seconds=0.2))
    whole = two_workers(gpu)
    gpu.is_held = True
    whole.wait_in_stream(whole.sum(torch.ones(1)))
    # As where the script's thread reads a result by itself.
    gpu.synchronize()
    assert gpu.aborted_by == ["remora-abort"]
    with pytest.raises(PeerLost, match=r"a collective has not ended within 0\.2 seconds"):
        whole.synchronize()
    assert len(watchers()) <= 1
    whole.abandon()
    assert not watchers()


def test_what_ends_late_is_not_lost(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "COLLECTIVE_TIMEOUT", datetime.timedelta(seconds=0.01))
    whole = two_workers(gpu)
    looked = threading.Event()

    class Seen(Event):
        def query(self) -> bool:
            looked.set()
            return super().query()

    monkeypatch.setattr(torch.cuda, "Event", lambda: Seen(gpu))
    # It ended long ago, and the host had no reason to look.
    whole.wait_in_stream(whole.sum(torch.ones(1)))
    assert looked.wait(FOR_EVER_S)
    whole.synchronize()
    assert not gpu.aborted.is_set()
    whole.abandon()
    assert not watchers()


@pytest.mark.parametrize("error", [ErrorType.COMM_ERROR, ErrorType.TIMEOUT])
def test_what_nccl_finds_out_by_itself_breaks_the_whole_group(gpu: Gpu, error: Any) -> None:
    whole = two_workers(gpu)
    part = whole.subgroup([0, 1], "part")
    whole.wait_in_stream(whole.sum(torch.ones(1)))
    gpu.is_held = True
    part.wait_in_stream(part.sum(torch.ones(1)))
    gpu.error = error
    gpu.synchronize()
    with pytest.raises(PeerLost, match=f"NCCL reports {error.name}"):
        part.check()
    with pytest.raises(PeerLost):
        whole.check()
    part.abandon()
    whole.abandon()
    assert gpu.aborted_by == ["remora-abort"] * 2
    assert not watchers()


def test_an_error_that_came_with_the_end_of_the_collectives_is_seen_before_the_step_counts(gpu: Gpu) -> None:
    whole = two_workers(gpu)
    whole.wait_in_stream(whole.sum(torch.ones(1)))
    gpu.error = ErrorType.COMM_ERROR
    with pytest.raises(PeerLost):
        whole.synchronize()
    whole.abandon()


def test_what_ended_by_the_abort_does_not_count(gpu: Gpu) -> None:
    whole = two_workers(gpu)
    gpu.is_held = True
    whole.wait_in_stream(whole.sum(torch.ones(1)))
    whole.break_off("the supervisor said so")
    assert gpu.aborted.wait(FOR_EVER_S)
    with pytest.raises(PeerLost, match="the supervisor said so"):
        whole.synchronize()
    whole.abandon()
    assert not watchers()


def test_a_failed_collective_of_a_part_breaks_the_whole_group(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = two_workers(gpu)
    part = whole.subgroup([0, 1], "part")

    def fail(*_: object) -> None:
        raise RuntimeError("NCCL error: remote process exited")

    monkeypatch.setattr(part._backend, "allreduce", fail)
    with pytest.raises(PeerLost, match="remote process exited"):
        part.sum(torch.ones(1))
    with pytest.raises(PeerLost, match="remote process exited"):
        whole.check()
    whole.abandon()


def test_the_host_waits_before_more_collectives_are_under_way_than_are_kept(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_watch, "MOST_MARKS", 4)
    whole = two_workers(gpu)
    for _ in range(9):
        whole.wait_in_stream(whole.sum(torch.ones(1)))
    assert whole.host_waits == 0, "the device has come to all of them"

    class Asked(Event):
        def query(self) -> bool:
            answer = super().query()
            gpu.error = gpu.error if answer else ErrorType.COMM_ERROR
            return answer

    monkeypatch.setattr(torch.cuda, "Event", lambda: Asked(gpu))
    gpu.is_held = True
    for _ in range(4):
        whole.wait_in_stream(whole.sum(torch.ones(1)))
    with pytest.raises(PeerLost, match="NCCL reports COMM_ERROR"):
        whole.wait_in_stream(whole.sum(torch.ones(1)))
    assert whole.host_waits == 1
    whole.abandon()


@pytest.mark.parametrize("exactness", ["sample-exact", "bitwise"])
def test_a_step_whose_gradients_a_loss_has_spoiled_changes_no_weight(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, exactness: Any
) -> None:
    train_with(monkeypatch, gpu)
    model = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = Loop(model, optimizer, **ARGUMENTS, total_steps=4, exactness=exactness)
    before: list[torch.Tensor] = []

    def train() -> None:
        for step in loop:
            if step.number == 2:
                before.append(model.weight.detach().clone())
                gpu.is_held, gpu.error = True, ErrorType.COMM_ERROR
            step.backward(squared)
            optimizer.step()

    with pytest.raises(PeerLost, match="NCCL reports COMM_ERROR"):
        train()
    assert loop.steps_done == 1
    assert torch.equal(model.weight, before[0])


class Supervisor:
    """Has another group ready, of this worker alone."""

    stops = False
    taken_at = 0.0

    def __init__(self) -> None:
        self.on_leave: Any = None
        self.steps: list[int | None] = []

    def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "joined":
            self.steps.append(message["step"])

    def must_leave(self, generation: int) -> bool:
        return False

    def await_regroup(self, generation: int) -> Rendezvous:
        return Rendezvous(generation + 1, 0, 1, 0, 1, 0, "127.0.0.1", 1)

    def reach_boundary(self, at: int | None = None) -> None:
        return None

    def set_boundary(self, boundary: int) -> None:
        pass


def test_a_sharded_step_that_a_loss_spoils_after_its_gradients_is_done_again(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_with(monkeypatch, gpu)
    supervisor = Supervisor()
    monkeypatch.setattr(training, "open_link", lambda: supervisor)
    monkeypatch.setattr(ShardedTraining, "_checkpoint", lambda self, is_last: None)
    loop = ShardedLoop(build(2), **ARGUMENTS, total_steps=4)
    numbers = []
    for step in loop:
        step.backward(squared)
        numbers.append(step.number)
        if len(numbers) == 2:
            # The norm comes from a collective that does not end, and so do the weights: the host goes on.
            gpu.is_held, gpu.error = True, ErrorType.COMM_ERROR
        nn.utils.clip_grad_norm_(loop.model.parameters(), 1.0)
        loop.optimizer.step()
    assert numbers == [1, 2, 2, 3, 4]
    assert supervisor.steps == [0, 1]
    assert not watchers()
