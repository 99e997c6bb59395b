"""An evaluation counts each sample once, and leaves model and random numbers as they were."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

from remora.torch import Loop, ShardedStream, Steps
from remora.torch.group import PeerLost
from remora.torch.members import Membership
from remora.torch.state_sync import WorkerState, evaluators


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REMORA_CHANNEL_FD", "MASTER_ADDR", "REMORA_RESUME_DIR", "REMORA_SHARDS"):
        monkeypatch.delenv(name, raising=False)


class Stream(IterableDataset):
    def __init__(self, values: torch.Tensor) -> None:
        self.values = values

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        return iter([(value,) for value in self.values])


def held_out(size: int) -> torch.Tensor:
    return torch.randn(size, 3, generator=torch.Generator().manual_seed(2))


def loop_of() -> tuple[Loop, nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 1))
    model[1].eval()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(held_out(8))
    return Loop(model, optimizer, data=data, global_batch=4, shards=3, total_steps=1), model, optimizer


def loss_of(model: nn.Module, batch: Any) -> torch.Tensor:
    return model(batch[0]).square().mean()


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("size", [1, 2, 7, 20])
def test_each_sample_counts_once(size: int, is_stream: bool) -> None:
    loop, model, optimizer = loop_of()
    values = held_out(size)
    seen: list[float] = []

    def compute(model: nn.Module, batch: Any) -> Any:
        assert not model.training
        assert not torch.is_grad_enabled()
        seen.extend(batch[0][:, 0].tolist())
        outputs = model(batch[0])
        return outputs.square().mean(), {"sum": (outputs.sum(), 1), "first": batch[0][:, 0].mean()}

    for step in loop:
        step.backward(loss_of)
        optimizer.step()
        modes = [module.training for module in model.modules()]
        numbers = torch.get_rng_state()
        data: Any = Stream(values) if is_stream else TensorDataset(values)
        found = loop.evaluate(data, compute, batch_size=3)
        assert torch.equal(torch.get_rng_state(), numbers)
        assert [module.training for module in model.modules()] == modes
    assert sorted(seen) == sorted(values[:, 0].tolist())
    with torch.no_grad():
        outputs = model.eval()(values)
    assert found["loss"] == pytest.approx(outputs.square().mean().item(), rel=1e-5)
    assert found["first"] == pytest.approx(values[:, 0].mean().item(), rel=1e-5)
    assert list(found) == ["loss", "sum", "first"]


class PlacedStream(Stream):
    """Goes on where its last reading has ended."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__(values)
        self.place = 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        while self.place < len(self.values):
            self.place += 1
            yield (self.values[self.place - 1],)
        self.place = 0

    def state_dict(self) -> dict[str, int]:
        return {"place": self.place}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.place = state["place"]


class Divides(Stream):
    """Noise in its samples, which several loader processes would divide among them."""

    def __iter__(self) -> Iterator[tuple[torch.Tensor]]:
        process = get_worker_info()
        first, step = (0, 1) if process is None else (process.id, process.num_workers)
        return ((value + torch.rand(()),) for value in self.values[first::step])


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(
    "stream",
    [
        pytest.param(lambda: Divides(held_out(20)), id="a stream that would be divided"),
        pytest.param(lambda: PlacedStream(held_out(20)), id="one that knows its place"),
        pytest.param(lambda: DataLoader(Divides(held_out(20)), batch_size=None), id="a loader"),
        pytest.param(lambda: Divides(held_out(1)), id="fewer batches than processes"),
    ],
)
def test_a_stream_is_read_by_processes_and_gives_the_same_batches(stream: Any, num_workers: int) -> None:
    def collate(items: list[Any]) -> Any:
        return torch.stack([item[0] for item in items]), torch.rand(()), os.getpid()

    def evaluate(num_workers: int) -> tuple[list[Any], set[int]]:
        loop, _, optimizer = loop_of()
        data, found, processes = stream(), [], set()

        def compute(model: nn.Module, batch: Any) -> Any:
            found.append([batch[0].tolist(), batch[1].item()])
            processes.add(batch[2])
            return loss_of(model, batch)

        for step in loop:
            step.backward(loss_of)
            optimizer.step()
            for _ in range(2):
                means = loop.evaluate(
                    data, compute, batch_size=3, collate_fn=collate, num_workers=num_workers
                )
                found.append(means)
        return found, processes

    alone, here = evaluate(0)
    assert here == {os.getpid()}
    found, processes = evaluate(num_workers)
    assert found == alone
    # Each evaluation starts its own.
    assert len(processes) == 2 * min(num_workers, len(found) // 2 - 1)
    assert os.getpid() not in processes


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_that_knows_its_place_is_read_from_its_beginning_after_a_lost_worker(
    num_workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, model, optimizer = loop_of()
    lost = iter([False, False, False, True])

    def check() -> None:
        if next(lost, False):
            raise PeerLost("a peer was lost")

    # The third batch is the last one of the first try.
    monkeypatch.setattr(Membership, "check", lambda _: check())
    monkeypatch.setattr(Loop, "_change_inside", lambda _, why: None)
    values, seen = held_out(20), []

    def compute(model: nn.Module, batch: Any) -> torch.Tensor:
        seen.append(len(batch[0]))
        return loss_of(model, batch)

    for step in loop:
        step.backward(loss_of)
        optimizer.step()
        found = loop.evaluate(PlacedStream(values), compute, batch_size=3, num_workers=num_workers)
    assert sum(seen) > 20, "some of it is computed twice"
    with torch.no_grad():
        assert found["loss"] == pytest.approx(float(model.eval()(values).square().mean()), rel=1e-5)


def test_random_numbers_of_a_batch_follow_its_place_and_not_what_was_computed_before() -> None:
    def collate(items: list[Any]) -> Any:
        return torch.stack([item[0] for item in items]), torch.rand(())

    def evaluate(skipped: int) -> list[float]:
        loop, _, optimizer = loop_of()
        found: list[float] = []

        def compute(model: nn.Module, batch: Any) -> Any:
            torch.rand(skipped)
            found.append(batch[1].item())
            return loss_of(model, batch)

        for step in loop:
            step.backward(loss_of)
            optimizer.step()
            loop.evaluate(Stream(held_out(20)), compute, batch_size=3, collate_fn=collate)
        return found

    assert evaluate(0) == evaluate(5)


def test_processes_that_load_are_not_given_the_function() -> None:
    loop, _, optimizer = loop_of()
    started = multiprocessing.get_start_method()
    multiprocessing.set_start_method("spawn", force=True)
    try:
        for step in loop:
            step.backward(loss_of)
            optimizer.step()
            for data in (TensorDataset(held_out(5)), Stream(held_out(5))):
                found = loop.evaluate(data, lambda *given: loss_of(*given), num_workers=1)
    finally:
        multiprocessing.set_start_method(started, force=True)
    assert found["loss"] > 0


def test_steps_evaluate_before_they_are_committed() -> None:
    _, model, optimizer = loop_of()
    values = held_out(7)
    steps = Steps(model, optimizer, data=TensorDataset(held_out(8)), global_batch=4, shards=3, total_steps=2)
    for step in steps:
        for batch in step.batches():
            step.backward(loss_of(model, batch))
        assert step.reduce()
        optimizer.step()
        found = steps.evaluate(TensorDataset(values), loss_of, batch_size=2)
        step.commit()
    with torch.no_grad():
        assert found["loss"] == pytest.approx(float(model.eval()(values).square().mean()), rel=1e-5)


def test_what_cannot_be_evaluated_is_refused_in_one_sentence() -> None:
    loop, _, optimizer = loop_of()
    data = TensorDataset(held_out(5))
    # Metrics of two batches.
    changing = iter([{"a": 1.0}, {"b": 1.0}])
    with pytest.raises(RuntimeError, match="inside a step of the loop"):
        loop.evaluate(data, loss_of)
    for step in loop:
        with pytest.raises(RuntimeError, match="inside a step of the loop"):
            loop.evaluate(data, loss_of)
        step.backward(loss_of)
        with pytest.raises(RuntimeError, match=r"after optimizer.step\(\)"):
            loop.evaluate(data, loss_of)
        optimizer.step()
        with pytest.raises(ValueError, match="has no sample"):
            loop.evaluate(TensorDataset(held_out(0)), loss_of)
        with pytest.raises(ValueError, match="has no sample"):
            loop.evaluate(Stream(held_out(0)), loss_of)
        with pytest.raises(ValueError, match="a DataLoader that makes batches"):
            loop.evaluate(DataLoader(data, batch_size=2), loss_of)
        with pytest.raises(ValueError, match="leave num_workers out of one of the two"):
            loop.evaluate(DataLoader(data, batch_size=None, num_workers=1), loss_of, num_workers=1)
        with pytest.raises(ValueError, match="has no sample"):
            loop.evaluate(Stream(held_out(0)), loss_of, num_workers=1)
        with pytest.raises(ValueError, match="without ShardedStream"):
            loop.evaluate(ShardedStream(lambda *_: data), loss_of)
        with pytest.raises(ValueError, match="batch_size is a number of samples"):
            loop.evaluate(data, loss_of, batch_size=0)
        with pytest.raises(ValueError, match="calls the loss 'loss' itself"):
            loop.evaluate(data, lambda *_: (torch.ones(()), {"loss": 1.0}))
        with pytest.raises(TypeError, match="the same metrics"):
            loop.evaluate(data, lambda *_: (torch.ones(()), next(changing)))


def test_a_step_whose_gradients_the_script_leaves_out_is_evaluated() -> None:
    loop, model, _ = loop_of()
    for step in loop:
        step.backward(lambda model, batch: loss_of(model, batch) * float("inf"))
        # As a GradScaler does, the script makes no step from gradients that are not finite.
        found = loop.evaluate(TensorDataset(held_out(5)), loss_of)
    with torch.no_grad():
        assert found["loss"] == pytest.approx(float(model.eval()(held_out(5)).square().mean()), rel=1e-5)


@given(inside=st.lists(st.integers(0, 3), min_size=1, max_size=6), behind=st.sets(st.integers(0, 5)))
def test_who_joined_after_the_step_has_no_part_in_its_evaluations(
    inside: list[int], behind: set[int]
) -> None:
    late = [rank for rank in behind if rank < len(inside) and not inside[rank]]
    states = [WorkerState(3, False, 0, evaluation=one) for one in inside]
    found = evaluators(states, late)
    part = [rank for rank, one in enumerate(inside) if one or rank in late]
    if not any(inside) or len(part) == len(inside):
        assert found is None
    else:
        assert list(found or ()) == part
