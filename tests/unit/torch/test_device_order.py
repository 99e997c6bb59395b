"""After a lost peer the device is not touched before the communicators are aborted.

The device is a double: from the loss on whatever waits for it waits until `abort` was called, and fails where no thread
calls it, as with NCCL it would wait for a collective that cannot end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._C._distributed_c10d import ErrorType
from torch.utils._python_dispatch import TorchDispatchMode

from remora import training
from remora.script.link import Rendezvous
from remora.torch import Loop, members
from remora.torch.group import Group

#: What waits until the device has computed everything before it.
WAITS = {
    "aten.equal.default",
    "aten._local_scalar_dense.default",
    "aten.is_nonzero.default",
    "aten.nonzero.default",
}

#: Seconds after which a wait is one that no thread ends.
FOR_EVER_S = 5.0


class Device:
    """The double."""

    def __init__(self) -> None:
        self.is_held = False
        self.aborted = threading.Event()
        #: What happened from the loss on.
        self.order: list[str] = []
        self.collectives = 0
        #: Called with the number of every collective of the first group before it begins.
        self.before: Callable[[int], None] = lambda number: None

    def hold(self) -> None:
        self.is_held = True
        self.order.append("lost")

    def free(self) -> None:
        self.is_held = False
        self.order.append("aborted")
        self.aborted.set()

    def touch(self, name: str) -> None:
        """Wait as long as the device is held, which is for ever where only the waiting thread would abort."""
        if name in WAITS and self.is_held and not self.aborted.wait(FOR_EVER_S):
            raise AssertionError(f"{name} waits for a collective that cannot end")


class Watching(TorchDispatchMode):
    """Records on the device all that is computed in this thread."""

    def __init__(self, device: Device) -> None:
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.device.touch(str(function))
        return function(*args, **(kwargs or {}))


class Work:
    """A collective; the stream that waits for it lets the host go on, whether it ends or not."""

    def wait(self, *_: Any) -> None:
        pass


class Backend:
    """Communicators of two workers of which the other one does as this one does, until it is lost."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def _begin(self, act: Callable[[], Any]) -> Work:
        self.device.collectives += 1
        self.device.before(self.device.collectives)
        if not self.device.is_held:
            act()
        return Work()

    def allreduce(self, tensors: list[torch.Tensor]) -> Work:
        return self._begin(lambda: tensors[0].mul_(2.0))

    def _allgather_base(self, received: torch.Tensor, sent: torch.Tensor) -> Work:
        def act() -> None:
            if self.device.collectives == 1:
                # Both come from a checkpoint, so that no worker has to be sent the state.
                sent[1] = 0
            received.copy_(torch.cat([sent, sent]))

        return self._begin(act)

    def get_error(self) -> Any:
        return ErrorType.SUCCESS

    def abort(self) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.device.free()


class Event:
    """A mark in the device's queue."""

    def __init__(self, device: Device) -> None:
        self.device = device

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return not self.device.is_held


class Supervisor:
    """Hears of the loss, and has another group ready, of this worker alone."""

    stops = False

    def __init__(self) -> None:
        self.on_leave: Callable[[int], None] = lambda generation: None
        self.parted = -1
        self.said: list[str] = []

    def lose(self) -> None:
        """As the thread that reads the channel does it."""
        self.parted = 0
        notifying = threading.Thread(target=self.on_leave, args=(0,))
        notifying.start()
        notifying.join()

    def send(self, message: dict[str, Any]) -> None:
        self.said.append(message["type"])

    def must_leave(self, generation: int) -> bool:
        return generation <= self.parted

    def await_regroup(self, generation: int) -> Rendezvous:
        return Rendezvous(generation + 1, 0, 1, 0, 1, 0, "127.0.0.1", 1)

    def reach_boundary(self, at: int | None = None) -> None:
        return None

    def set_boundary(self, boundary: int) -> None:
        pass

    def report(self, *_: Any, **__: Any) -> None:
        pass


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    one = Device()
    for name in ("REMORA_RESUME_DIR", "REMORA_JOIN", "REMORA_GENERATION"):
        monkeypatch.delenv(name, raising=False)

    def form(place: Rendezvous, **_: Any) -> Group:
        if place.generation == 0:
            return Group(Rendezvous(0, 0, 2, 0, 2, 0, "127.0.0.1", 1), Backend(one), None, on_cuda=True)
        return Group(place, None, None, on_cuda=True)

    monkeypatch.setattr(members, "form", form)
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(one))
    return one


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    one = Supervisor()
    monkeypatch.setattr(training, "open_link", lambda: one)
    monkeypatch.setattr(Loop, "_checkpoint", lambda self, is_last: None)
    return one


def train(device: Device, compute: Callable[..., torch.Tensor]) -> int:
    torch.manual_seed(1)
    # Whether its statistics have changed is what an undone step looks at.
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = Loop(model, optimizer, data=torch.randn(16, 4), global_batch=8, shards=2, total_steps=4)
    with Watching(device):
        for step in loop:
            step.backward(compute)
            optimizer.step()
    assert model[1].num_batches_tracked == loop.steps_done, "a step that is undone undoes no step before it"
    return loop.steps_done


def squared(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


#: Collectives: 1 compares workers' states, 2 confirms, 3 is that of step 1, 4 compares weights, 5 is that of step 2.
@pytest.mark.parametrize("lost_in", [1, 2, 3, 4, 5, 6])
def test_communicators_are_aborted_before_anything_waits_for_the_device(
    lost_in: int, device: Device, supervisor: Supervisor
) -> None:
    def before(number: int) -> None:
        if number == lost_in:
            device.hold()
            threading.Timer(0.05, supervisor.lose).start()

    device.before = before
    assert train(device, squared) == 4
    assert device.order == ["lost", "aborted"]


def test_who_already_waits_for_the_device_is_freed_by_the_thread_that_hears_the_news(
    device: Device, supervisor: Supervisor
) -> None:
    calls: list[bool] = []

    def compute(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        calls.append(True)
        if len(calls) == 3:
            device.hold()
            threading.Timer(0.05, supervisor.lose).start()
            # As `loss.item()` would.
            device.touch("aten.equal.default")
        return squared(model, batch)

    assert train(device, compute) == 4
    assert device.order == ["lost", "aborted"]


def test_communicators_of_an_errand_are_aborted_with_those_of_the_group(device: Device) -> None:
    whole = Group(Rendezvous(0, 0, 2, 0, 2, 0, "127.0.0.1", 1), Backend(device), None, on_cuda=True)
    subgroup = Device()
    part = whole.subgroup([0], "subgroup")
    part._backend = Backend(subgroup)
    whole.break_off("news")
    assert device.aborted.wait(FOR_EVER_S)
    assert subgroup.aborted.wait(FOR_EVER_S)
