"""Steps alone: they train what `Loop` trains, and refuse calls that are missing or come in another order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from remora.torch import Loop, NotFinite, OpenStep, Steps

SAMPLES = 22


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("REMORA_CHANNEL_FD", "MASTER_ADDR", "REMORA_RESUME_DIR", "RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def numbers(*, damaged: bool = False) -> list[tuple[torch.Tensor, torch.Tensor]]:
    features = torch.randn(SAMPLES, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    if damaged:
        features[13] = float("nan")
    return [(one, one.sum()) for one in features]


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1)).double()
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def error(model: nn.Module, batch: Any) -> torch.Tensor:
    return (model(batch[0])[:, 0] - batch[1]).square().mean()


def settings(**changed: Any) -> dict[str, Any]:
    fields = {"data": numbers(), "global_batch": 8, "shards": 3, "epochs": 3, "seed": 4, "check_every": 2}
    return {**fields, **changed}


def trained_by_steps(**changed: Any) -> tuple[nn.Module, list[tuple[int, int, float]]]:
    model, optimizer = make()
    seen = []
    for step in Steps(model, optimizer, **settings(**changed)):
        for batch in step.batches():
            step.backward(error(model, batch), {"largest": batch[1].max()})
        if step.reduce():
            optimizer.step()
            seen.append((step.number, step.total, step.metrics["largest"]))
            step.commit()
    return model, seen


def trained_by_loop(**changed: Any) -> tuple[nn.Module, list[tuple[int, int, float]]]:
    model, optimizer = make()
    seen = []
    for step in Loop(model, optimizer, **settings(**changed)):
        step.backward(lambda model, batch: (error(model, batch), {"largest": batch[1].max()}))
        optimizer.step()
        seen.append((step.number, step.total, step.metrics["largest"]))
    return model, seen


@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({}, id="plain"),
        pytest.param({"micro_batch": 1}, id="accumulated"),
        pytest.param({"data": numbers(damaged=True), "nonfinite": "rollback"}, id="rolled back"),
        pytest.param({"data": numbers(damaged=True), "nonfinite": "skip"}, id="skipped"),
    ],
)
def test_they_train_what_loop_trains(changed: dict[str, Any]) -> None:
    model, seen = trained_by_steps(**changed)
    same, expected = trained_by_loop(**changed)
    assert str(seen) == str(expected), "numbers that are not finite are not equal to themselves"
    assert all(
        torch.equal(one, other) for one, other in zip(model.parameters(), same.parameters(), strict=True)
    )


def test_after_the_last_step_there_is_none() -> None:
    model, optimizer = make()
    steps = Steps(model, optimizer, **settings(epochs=None, total_steps=1))
    step = steps.begin()
    assert step is not None
    complete(step, model)
    optimizer.step()
    step.commit()
    assert steps.begin() is None
    assert steps.begin() is None
    assert steps.steps_done == 1


def complete(step: OpenStep, model: nn.Module) -> None:
    for batch in step.batches():
        step.backward(error(model, batch))
    assert step.reduce()


def train(steps: Steps, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for step in steps:
        complete(step, model)
        optimizer.step()
        step.commit()


def begin_without_commit(steps: Steps, step: OpenStep, model: nn.Module, _: torch.optim.Optimizer) -> None:
    complete(step, model)
    steps.begin()


def begin_without_reduce(steps: Steps, step: OpenStep, model: nn.Module, _: torch.optim.Optimizer) -> None:
    for batch in step.batches():
        step.backward(error(model, batch))
    steps.begin()


def reduce_without_batches(_: Steps, step: OpenStep, model: nn.Module, __: torch.optim.Optimizer) -> None:
    for batch in step.batches():
        step.backward(error(model, batch))
        break
    step.reduce()


def no_backward(_: Steps, step: OpenStep, model: nn.Module, __: torch.optim.Optimizer) -> None:
    for batch in step.batches():
        error(model, batch)


def backward_twice(_: Steps, step: OpenStep, model: nn.Module, __: torch.optim.Optimizer) -> None:
    for batch in step.batches():
        step.backward(error(model, batch))
        step.backward(error(model, batch))


def own_backward(_: Steps, step: OpenStep, model: nn.Module, __: torch.optim.Optimizer) -> None:
    for batch in step.batches():
        error(model, batch).backward()
        step.backward(error(model, batch))


def early(_: Steps, step: OpenStep, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for batch in step.batches():
        step.backward(error(model, batch))
        optimizer.step()


def batches_again(_: Steps, step: OpenStep, model: nn.Module, __: torch.optim.Optimizer) -> None:
    complete(step, model)
    next(step.batches())


def reduce_twice(_: Steps, step: OpenStep, model: nn.Module, __: torch.optim.Optimizer) -> None:
    complete(step, model)
    step.reduce()


def commit_early(_: Steps, step: OpenStep, __: nn.Module, ___: torch.optim.Optimizer) -> None:
    step.commit()


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (begin_without_commit, "step 1 is not committed: call step.commit() after optimizer.step()"),
        (begin_without_reduce, "step 1 is not reduced: call step.reduce() after step.batches()"),
        (reduce_without_batches, "read step.batches() to its end"),
        (no_backward, "call step.backward(loss) for every batch of step.batches()"),
        (backward_twice, "step.backward(loss) is called once for each batch"),
        (own_backward, "gradients were changed between step.batches() and step.backward(loss)"),
        (early, "an optimizer steps before step.reduce()"),
        (batches_again, "the gradients of this step are complete"),
        (reduce_twice, "step.reduce() is called once after step.batches()"),
        (commit_early, "step.commit() is called once, after step.reduce() has returned True"),
    ],
)
def test_a_call_that_is_missing_or_too_early_is_refused(script: Callable[..., None], says: str) -> None:
    model, optimizer = make()
    steps = Steps(model, optimizer, **settings())
    step = steps.begin()
    assert step is not None
    with pytest.raises(RuntimeError, match=says.replace("(", "\\(").replace(")", "\\)")):
        script(steps, step, model, optimizer)


def test_stop_refuses_what_is_not_finite_and_leaves_the_optimizer_usable() -> None:
    model, optimizer = make()
    steps = Steps(model, optimizer, **settings(data=numbers(damaged=True), nonfinite="stop"))
    with pytest.raises(NotFinite, match="the loss of step"):
        train(steps, model, optimizer)
    optimizer.step()


def test_a_script_that_leaves_early_closes_them() -> None:
    model, optimizer = make()
    for step in Steps(model, optimizer, **settings()):
        complete(step, model)
        break
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    other.step()
