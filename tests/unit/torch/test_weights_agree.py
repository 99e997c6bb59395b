"""What two workers hold is compared: the first tensor that differs is named, and rounding is no difference."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from remora import training
from remora.free_ports import free_port
from remora.script.link import Rendezvous
from remora.torch import Diverged, Loop
from remora.torch.agreement import StateDigests, differs, is_due, parameters_beside, tensors_of
from remora.torch.group import Group, form

CPU = torch.device("cpu")


def pair(act: Callable[[Group], Any]) -> list[Any]:
    """What it returns on each of two ranks, which are threads of this process."""
    port = free_port()
    results: dict[int, Any] = {}

    def run(rank: int) -> None:
        group = form(Rendezvous(1, rank, 2, 0, 1, 0, "127.0.0.1", port), check=lambda: None, on_cuda=False)
        results[rank] = act(group)

    both = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(60.0)
    return [results[rank] for rank in range(2)]


def weights(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    made = {
        name: torch.randn(shape, generator=generator).to(dtype)
        for name, shape in (
            ("a", (3, 5)),
            ("b", (7,)),
            ("c", (2, 2)),
            ("d", (2, 2)),
            ("scalar", ()),
            ("empty", (0,)),
        )
    }
    # Neither begins at a multiple of eight bytes, nor in one chunk.
    return {**made, "odd": made["b"][1:], "turned": made["a"].t()}


def found(change: Callable[[dict[str, torch.Tensor]], None], dtype: torch.dtype, *, is_bitwise: bool) -> Any:
    def act(group: Group) -> Any:
        held = weights(dtype)
        if group.rank == 1:
            change(held)
        return StateDigests(held, CPU).compare(group, is_bitwise=is_bitwise)

    one, other = pair(act)
    assert one == other, "all workers find the same"
    return one


@pytest.mark.parametrize("is_bitwise", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_equal_weights_agree_and_others_are_named(dtype: torch.dtype, is_bitwise: bool) -> None:
    assert found(lambda held: None, dtype, is_bitwise=is_bitwise) is None

    def change(held: dict[str, torch.Tensor]) -> None:
        held["c"][1, 1] += 1.0
        held["odd"] += 1.0

    # "odd" is a part of "b".
    assert found(change, dtype, is_bitwise=is_bitwise) == ("b", [1])


def test_two_tensors_that_changed_places_are_others() -> None:
    def change(held: dict[str, torch.Tensor]) -> None:
        held["c"], held["d"] = held["d"], held["c"]

    assert found(change, torch.float32, is_bitwise=True) == ("c", [1])


def test_rounding_is_no_difference_but_for_bitwise() -> None:
    def change(held: dict[str, torch.Tensor]) -> None:
        held["a"].mul_(1.0 + 1e-6)

    assert found(change, torch.float32, is_bitwise=False) is None
    assert found(change, torch.float32, is_bitwise=True) == ("a", [1])


def test_what_is_not_finite_on_both_agrees_and_on_one_does_not() -> None:
    def on_both(group: Group) -> Any:
        held = weights()
        held["a"][0, 0] = float("nan")
        held["b"][0] += 1e-6 * group.rank
        return StateDigests(held, CPU).compare(group, is_bitwise=False)

    assert pair(on_both) == [None, None]

    def change(held: dict[str, torch.Tensor]) -> None:
        held["a"][0, 0] = float("nan")

    assert found(change, torch.float32, is_bitwise=False) == ("a", [1])


def test_when_weights_are_compared() -> None:
    assert [step for step in range(301) if is_due(step, 100)] == [1, 100, 200, 300]
    assert not any(is_due(step, 0) for step in range(301))


def test_tensors_of_a_state_are_found_wherever_they_stand() -> None:
    one, other = torch.ones(2), torch.ones(3)
    state = {"average": {"shadow": [one, {1: other}], "steps": torch.ones(1, dtype=torch.long), "decay": 0.9}}
    assert list(tensors_of(state)) == [("average.shadow.0", one), ("average.shadow.1.1", other)]


@pytest.mark.parametrize(
    ("one", "other", "is_other"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), False),
        (torch.tensor([1.0]), torch.tensor([2.0]), True),
        (torch.tensor([1.0]), torch.tensor([1]), True),
        (numpy.arange(3), numpy.arange(3), False),
        (numpy.arange(3), numpy.arange(3) + 1, True),
        ((1, {"a": "x"}), (1, {"a": "y"}), True),
        (float("nan"), float("nan"), False),
        (object(), object(), False),
        ([1, 2], [1, 2, 3], True),
    ],
)
def test_samples_that_differ(one: Any, other: Any, is_other: bool) -> None:
    assert differs(one, other) == is_other


def test_modules_that_a_function_uses_are_found_and_what_is_no_function_is_taken() -> None:
    teacher, model = nn.Linear(2, 1), nn.Linear(2, 1)

    def early(batch: Any) -> Any:
        return teacher(batch) + model(batch) + later

    known = {id(one) for one in model.parameters()}
    assert parameters_beside(early, known) == {}, "one of its names has no value yet"
    later = 1.0
    assert list(parameters_beside(early, known)) == ["teacher.weight", "teacher.bias"]
    assert parameters_beside(len, known) == {}


class Listener:
    """A supervisor that writes down what it gets."""

    stops = False

    def __init__(self) -> None:
        self.reported: list[dict[str, Any]] = []
        self.on_leave: Any = None

    def send(self, message: dict[str, Any]) -> None:
        self.reported.append(message)

    def must_leave(self, generation: int) -> bool:
        return False

    def reach_boundary(self, at: int | None = None) -> str | None:
        return None

    def set_boundary(self, boundary: int) -> None:
        pass

    def report(self, *_: Any, **__: Any) -> None:
        pass


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Listener:
    for name in ("MASTER_ADDR", "REMORA_RESUME_DIR", "REMORA_JOIN"):
        monkeypatch.delenv(name, raising=False)
    one = Listener()
    monkeypatch.setattr(training, "open_link", lambda: one)
    return one


def test_the_supervisor_knows_before_the_script_ends(listener: Listener) -> None:
    torch.manual_seed(1)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = Loop(model, optimizer, data=torch.randn(16, 4), global_batch=8, shards=2, total_steps=6)

    def compute(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model.bias.add_(0.1)
        return model(batch).square().mean()

    def train() -> None:
        for step in loop:
            step.backward(compute)
            optimizer.step()

    with pytest.raises(Diverged, match=r"bias was changed inside step\.backward"):
        train()
    (said,) = [one for one in listener.reported if one["type"] == "diverged"]
    assert said["text"].startswith("bias was changed inside step.backward")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_dataset_of_chance_is_refused_and_may_be_taken_all_the_same(num_workers: int) -> None:
    class Chance(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 16

        def __getitem__(self, number: int) -> numpy.ndarray:
            return numpy.random.default_rng().normal(size=4).astype("float32")

    def train(**changed: Any) -> None:
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        fields = {
            "data": Chance(),
            "global_batch": 8,
            "shards": 2,
            "total_steps": 2,
            "num_workers": num_workers,
        }
        for step in Loop(model, optimizer, **{**fields, **changed}):
            step.backward(lambda model, batch: model(batch).square().mean())
            optimizer.step()

    with pytest.raises(ValueError, match="gave two different samples for number"):
        train()
    train(check_every=0)
