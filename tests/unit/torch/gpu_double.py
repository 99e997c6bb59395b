"""A device that computes by itself, as a GPU does: streams wait for collectives, and the host goes on.

Tensors are those of the processor, so results are there at once; `Gpu` says whether the device has come to them.
The communicators are those of two workers of which the other one does as this one does.
"""

from __future__ import annotations

import datetime
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._C._distributed_c10d import ErrorType

from remora.script.link import Rendezvous
from remora.torch import device_watch, group, members
from remora.torch.group import Group
from remora.torch.sharded import process_groups
from remora.torch.sharded.mesh import close_mesh

#: Seconds after which a wait is one that nothing ends.
FOR_EVER_S = 10.0


class Gpu:
    """The device, and what was asked of it."""

    def __init__(self) -> None:
        #: It does nothing of what is queued from now on.
        self.is_held = False
        #: Set when the communicators were aborted, after which it goes on.
        self.aborted = threading.Event()
        self.aborted_by: list[str] = []
        #: What NCCL's watchdog says.
        self.error = ErrorType.SUCCESS
        #: What happened, in order.
        self.order: list[str] = []
        self.collectives = 0
        self.stream_waits = 0
        self.blocking_waits = 0
        self.queries = 0
        #: Called with the name of each collective before it begins.
        self.before: Callable[[str], None] = lambda name: None

    def synchronize(self) -> None:
        """As `loss.item()` does: without a look at anything else."""
        if self.is_held:
            assert self.aborted.wait(FOR_EVER_S), "nothing aborts a collective that cannot end"


class Work:
    """A collective."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def is_completed(self) -> bool:
        return True

    def wait(self, timeout: datetime.timedelta | None = None) -> None:
        if timeout is None:
            self.gpu.stream_waits += 1
        else:
            self.gpu.blocking_waits += 1


class Event:
    """A mark in a stream."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def record(self, *_: object) -> None:
        self.is_behind = self.gpu.is_held

    def query(self) -> bool:
        self.gpu.queries += 1
        return not self.is_behind or self.gpu.aborted.is_set()


class Backend:
    """The communicators."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu
        #: What was sent of each bucket in bitwise mode, of which each worker adds up its half and gathers the others'.
        self.sent: deque[torch.Tensor] = deque()

    def _begin(self, name: str) -> Work:
        self.gpu.collectives += 1
        self.gpu.order.append(name)
        self.gpu.before(name)
        return Work(self.gpu)

    def allreduce(self, tensors: list[torch.Tensor], _: object = None) -> Work:
        tensors[0].mul_(2.0)
        return self._begin("sum")

    def broadcast(self, *_: object) -> Work:
        return self._begin("broadcast")

    def _allgather_base(self, received: torch.Tensor, sent: torch.Tensor, _: object = None) -> Work:
        others = self.sent.popleft().view(2, -1)[1] * 2.0 if self.sent else sent.reshape(-1)
        received.view(-1).copy_(torch.cat([sent.reshape(-1), others]))
        return self._begin("gather")

    def alltoall_base(self, received: torch.Tensor, sent: torch.Tensor, into: list[int], *_: object) -> Work:
        if into and 0 in into:
            # Each sends all to the other.
            received.copy_(sent)
        else:
            received.copy_(torch.cat([sent[: len(sent) // 2]] * 2))
            if into:
                self.sent.append(sent.clone())
        return self._begin("exchange")

    def get_error(self) -> Any:
        return self.gpu.error

    def abort(self) -> None:
        # The script's thread may, once nothing holds the device.
        assert threading.current_thread() is not threading.main_thread() or self.gpu.aborted.is_set()
        self.gpu.aborted_by.append(threading.current_thread().name)
        self.gpu.order.append("aborted")
        self.gpu.aborted.set()


def install(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    """The device of this process, which is none of a job of Remora."""
    one = Gpu()
    for name in ("REMORA_RESUME_DIR", "REMORA_JOIN", "REMORA_GENERATION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(torch.cuda, "Event", lambda: Event(one))
    monkeypatch.setattr(group, "process_group", lambda *_: Backend(one))
    return one


def two_workers(gpu: Gpu, *, on_cuda: bool = True, rank: int = 0) -> Group:
    """A group of this process and another one."""
    return Group(Rendezvous(0, rank, 2, 0, 2, 0, "127.0.0.1", 1), Backend(gpu), None, on_cuda=on_cuda)


def train_with(
    monkeypatch: pytest.MonkeyPatch, gpu: Gpu, *, on_cuda: bool = True, rank: int = 0
) -> list[Group]:
    """Let loops train in a group of two workers, and alone in the one after it; returns what was formed."""
    formed: list[Group] = []
    for name, value in (("MASTER_ADDR", "127.0.0.1"), ("WORLD_SIZE", "2"), ("RANK", str(rank))):
        monkeypatch.setenv(name, value)

    def form(place: Rendezvous, **_: Any) -> Group:
        if place.generation == 0:
            formed.append(two_workers(gpu, on_cuda=on_cuda, rank=rank))
        else:
            formed.append(Group(place, None, None, on_cuda=on_cuda))
        return formed[-1]

    monkeypatch.setattr(members, "form", form)
    monkeypatch.setattr(process_groups, "form", form)
    return formed


def uninstall() -> None:
    """End what loops have left that came to their end."""
    close_mesh()
    for one in list(device_watch._open):
        one.stop()


def watchers() -> list[threading.Thread]:
    """Threads that look after devices."""
    return [one for one in threading.enumerate() if one.name == "remora-device-watch"]
