"""Several optimizers: a checkpoint has all of them at one step, and those that Loop cannot know are refused."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remora.torch import Loop, read_checkpoint
from remora.torch import saving as savings
from remora.torch.layout import Writer


def pair() -> tuple[nn.Module, torch.optim.Optimizer, torch.optim.Optimizer]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))
    first = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    return model, first, torch.optim.Adam(model[1].parameters())


def loop_of(model: nn.Module, optimizer: Any, **changed: Any) -> Loop:
    data = torch.randn(16, 4, generator=torch.Generator().manual_seed(1))
    fields: dict[str, Any] = {"data": data, "global_batch": 8, "shards": 2, "total_steps": 6}
    return Loop(model, optimizer, **{**fields, **changed})


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return (model(batch) - batch.sum(1, keepdim=True)).square().mean()


def test_any_optimizer_waits_until_a_checkpoint_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = threading.Event()

    @contextlib.contextmanager
    def hand_over(*_: object, **__: object) -> Iterator[Path]:
        assert copies.wait(60.0)
        yield tmp_path

    monkeypatch.setattr(savings.training, "hand_over", hand_over)
    model, first, second = pair()
    loop = loop_of(model, [first, second])
    steps = iter(loop)
    for _ in range(2):
        next(steps).backward(loss_of)
        first.step()
        second.step()
    before = {name: one.clone() for name, one in model.state_dict().items()}
    state = loop._capture_state(loop._reached())
    loop._saving.save(2, state, Writer(), in_background=True)
    # The third step; its second optimizer is the first to step.
    next(steps).backward(loss_of)
    stepped = threading.Event()

    def step_both() -> None:
        second.step()
        stepped.set()
        first.step()

    stepping = threading.Thread(target=step_both)
    stepping.start()
    was_early = stepped.wait(0.2)
    copies.set()
    stepping.join()
    loop._saving.wait()
    assert not was_early
    saved = read_checkpoint(tmp_path)["parts"]
    assert all(torch.equal(saved["model"][name], value) for name, value in before.items())
    assert {one["step"].item() for one in saved["optimizer-1"]["state"].values()} == {2.0}


def test_several_optimizers_resume(tmp_path: Path) -> None:
    model, first, second = pair()
    loop = loop_of(model, [first, second])
    for step in loop:
        step.backward(loss_of)
        first.step()
        second.step()
        if step.number == 3:
            loop.save(tmp_path)
    other, other_first, other_second = pair()
    resumed = loop_of(other, [other_first, other_second])
    resumed.load(tmp_path)
    for step in resumed:
        step.backward(loss_of)
        other_first.step()
        other_second.step()
    for ours, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, theirs)


class Pair:
    """A training state of the user's own, with an optimizer in it."""

    def __init__(self, second: torch.optim.Optimizer) -> None:
        self.parts = {"second": second}

    def state_dict(self) -> Any:
        return self.parts["second"].state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.parts["second"].load_state_dict(state)


def test_an_optimizer_that_is_hidden_in_the_state_is_refused() -> None:
    model, first, second = pair()
    schedule = torch.optim.lr_scheduler.ConstantLR(second)
    for hidden in (second, Pair(second), schedule):
        with pytest.raises(ValueError, match=r"state\['b'\] is an optimizer or holds one"):
            loop_of(model, first, state={"b": hidden})
    with pytest.raises(ValueError, match="scheduler is an optimizer or holds one"):
        loop_of(model, first, scheduler=schedule)
    loop_of(model, [first, second], scheduler=schedule, state={"b": Pair(second)})


def test_no_optimizer_and_one_twice_are_refused() -> None:
    model, first, _ = pair()
    with pytest.raises(ValueError, match="hand over an optimizer, or a list"):
        loop_of(model, [])
    with pytest.raises(ValueError, match="there twice"):
        loop_of(model, [first, first])


class Outer(torch.optim.Optimizer):
    """An optimizer around another one, as sharpness-aware ones and Lookahead are."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        super().__init__(inner.param_groups, {})

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            closure()
        self.inner.step()


def test_an_optimizer_inside_another_one_and_a_closure_work() -> None:
    model, _, _ = pair()
    outer = Outer(torch.optim.SGD(model.parameters(), lr=0.1))
    losses = []
    for step in loop_of(model, outer):
        outer.step(lambda step=step: losses.append(step.backward(loss_of).item()))
    assert len(losses) == 6
    assert losses[-1] < losses[0]


def test_once_the_loop_is_over_any_optimizer_may_step() -> None:
    model, first, second = pair()
    for step in loop_of(model, [first, second]):
        step.backward(loss_of)
        first.step()
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    other.step()
    for step in loop_of(model, other):
        step.backward(loss_of)
        other.step()


def test_what_was_unfrozen_is_so_after_a_resume(tmp_path: Path) -> None:
    def trained(until: int | None = None, resume: bool = False) -> nn.Module:
        model, _, _ = pair()
        model[0].requires_grad_(False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        loop = loop_of(model, optimizer)
        if resume:
            loop.load(tmp_path)
        for step in loop:
            step.backward(loss_of)
            optimizer.step()
            if step.number == 2:
                model[0].requires_grad_(True)
            if step.number == until:
                loop.save(tmp_path)
                break
        return model

    trained(until=4)
    for ours, theirs in zip(trained(resume=True).parameters(), trained().parameters(), strict=True):
        assert torch.equal(ours, theirs)
