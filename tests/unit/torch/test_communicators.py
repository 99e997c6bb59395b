"""Communicators are made in the background within a limit, and an abort that does not return ends its process alone.

The device is a double: `ProcessGroupNCCL` of a machine without GPUs.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from remora.free_ports import free_port
from remora.script import channel
from remora.script.link import Rendezvous
from remora.torch import communicators
from remora.torch.group import Group, PeerLost, form

FOR_EVER_S = 60.0
#: Any device with a number; the double computes nothing on it.
DEVICE = torch.device("cpu", 0)


class Nccl:
    """What all communicators of a test have in common."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.threads: set[str] = set()
        self.options: list[Any] = []
        self.aborted = threading.Event()
        self.connect: Callable[[], None] = lambda: None

    def note(self, what: str) -> None:
        self.order.append(what)
        self.threads.add(threading.current_thread().name)

    def process_group(self, store: Any, rank: int, size: int, options: Any) -> Any:
        self.note("made")
        self.options.append(options)

        def connect(device: torch.device) -> None:
            assert device == DEVICE
            self.note("connected")
            self.connect()

        def allreduce(tensors: list[torch.Tensor]) -> Any:
            self.note("summed")
            return SimpleNamespace(wait=lambda: None)

        return SimpleNamespace(eager_connect_single_device=connect, allreduce=allreduce, abort=self.abort)

    def abort(self) -> None:
        assert threading.current_thread() is not threading.main_thread()
        self.aborted.set()


class Event:
    """A mark in the device's queue."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Nccl:
    one = Nccl()

    class Made:
        Options = staticmethod(lambda: SimpleNamespace(config=SimpleNamespace(blocking=1), _timeout=None))

        def __new__(cls, *arguments: Any) -> Any:
            return one.process_group(*arguments)

    monkeypatch.setattr(communicators.dist, "ProcessGroupNCCL", Made, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())
    monkeypatch.setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    return one


@contextlib.contextmanager
def peer(port: int) -> Iterator[None]:
    """The other member of a group, as far as the rendezvous: it serves the store and is there."""
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    inside = torch.distributed.PrefixStore("remora/1/0", store)
    communicators.await_all(inside, place(0, port, world_size=1), datetime.timedelta(seconds=5))
    yield
    del inside, store


def place(rank: int, port: int, *, world_size: int = 2) -> Rendezvous:
    return Rendezvous(1, rank, world_size, 0, 1, 0, "127.0.0.1", port)


def formed(port: int, check: Callable[[], None] = lambda: None) -> Group:
    return form(place(1, port), check=check, on_cuda=True, device=DEVICE)


def test_communicators_are_made_before_the_first_collective_and_not_by_the_scripts_thread(nccl: Nccl) -> None:
    port = free_port()
    with peer(port):
        group = formed(port)
    assert nccl.order == ["made", "connected", "summed"]
    assert nccl.threads == {"remora-rendezvous"}
    (options,) = nccl.options
    assert options.config.blocking == 0
    assert options._timeout.total_seconds() == 1800.0
    assert not nccl.aborted.is_set()
    assert group.world_size == 2


def test_communicators_that_take_too_long_are_given_up_and_aborted(
    nccl: Nccl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(communicators, "FORM_S", 0.1)
    # As with NCCL, only the abort ends it.
    nccl.connect = lambda: nccl.aborted.wait(FOR_EVER_S) and None
    port = free_port()
    with (
        peer(port),
        pytest.raises(PeerLost, match=r"^the worker group could not be formed: .* longer than .* s$"),
    ):
        formed(port)
    assert nccl.aborted.wait(FOR_EVER_S)


def test_a_group_that_was_given_up_makes_no_communicators_when_its_last_member_comes(nccl: Nccl) -> None:
    def leave() -> None:
        raise PeerLost("the group is to be left")

    port = free_port()
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    with pytest.raises(PeerLost, match="to be left"):
        formed(port, check=leave)
    (forming,) = [one for one in threading.enumerate() if one.name == "remora-rendezvous"]
    inside = torch.distributed.PrefixStore("remora/1/0", store)
    communicators.await_all(inside, place(0, port), datetime.timedelta(seconds=5))
    forming.join(FOR_EVER_S)
    assert nccl.order == []


def test_what_was_made_while_its_group_was_given_up_is_aborted(nccl: Nccl) -> None:
    forming = communicators.Forming()
    forming.give_up()
    with pytest.raises(RuntimeError, match="not needed any more"):
        forming.began(SimpleNamespace(abort=nccl.abort))
    assert nccl.aborted.wait(FOR_EVER_S)


def test_communicators_that_fail_are_one_sentence(nccl: Nccl) -> None:
    def fail() -> None:
        raise RuntimeError("NCCL error in: NCCLUtils.cpp:94, unhandled system error\nncclSystemError: more")

    nccl.connect = fail
    port = free_port()
    said = r"^the worker group could not be formed: NCCL error in: NCCLUtils.cpp:94, unhandled system error$"
    with peer(port), pytest.raises(PeerLost, match=said):
        formed(port)
    assert nccl.aborted.wait(FOR_EVER_S), "what has been made of it holds the device"


def test_who_has_to_leave_a_group_that_is_formed_waits_for_no_communicator(nccl: Nccl) -> None:
    has_begun = threading.Event()

    def connect() -> None:
        has_begun.set()
        nccl.aborted.wait(FOR_EVER_S)

    def check() -> None:
        if has_begun.is_set():
            raise PeerLost("the supervisor said that the group is to be left")

    nccl.connect = connect
    port = free_port()
    with peer(port), pytest.raises(PeerLost, match="the supervisor said"):
        formed(port, check)
    assert nccl.aborted.wait(FOR_EVER_S)


def test_the_limit_begins_when_all_are_there(nccl: Nccl, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that loads for long is no reason to give up."""
    monkeypatch.setattr(communicators, "FORM_S", 0.0)
    looks: list[bool] = []

    def check() -> None:
        looks.append(True)
        if len(looks) == 5:
            raise PeerLost("the supervisor said that the group is to be left")

    port = free_port()
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    with pytest.raises(PeerLost, match="the supervisor said"):
        formed(port, check)
    assert nccl.order == []
    # Who is late ends the thread that waits.
    communicators.await_all(
        torch.distributed.PrefixStore("remora/1/0", store), place(0, port), datetime.timedelta(seconds=5)
    )


def group_of(abort: Callable[[], None]) -> Group:
    return Group(place(0, 1), SimpleNamespace(abort=abort), None, on_cuda=True)


def test_an_abort_that_returns_in_time_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[str] = []
    monkeypatch.setattr(communicators, "end_process", ended.append)
    monkeypatch.setattr(communicators, "ABORT_S", 0.2)
    group = group_of(lambda: None)
    group.abandon()
    watches = [one for one in threading.enumerate() if one.name == "remora-abort-watch"]
    for one in watches:
        one.join(FOR_EVER_S)
    assert ended == []


STUCK = """
import sys, threading
from types import SimpleNamespace
from remora.script.link import Rendezvous
from remora.torch import communicators
from remora.torch.group import Group
communicators.ABORT_S = 0.2
backend = SimpleNamespace(abort=threading.Event().wait)
group = Group(Rendezvous(1, 0, 2, 0, 1, 0, "127.0.0.1", 1), backend, None, on_cuda=True)
if sys.argv[1] == "script waits":
    group.abandon()
else:
    # The script's thread waits for the device, and the one that reads the channel learns of the loss.
    threading.Thread(target=group.break_off, args=("a peer was lost",)).start()
    threading.Event().wait()
"""


@pytest.mark.parametrize("who", ["script waits", "device waits"])
def test_an_abort_that_never_returns_ends_its_process_which_says_why(who: str) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", STUCK, who],
            env={**os.environ, channel.FD_VARIABLE: str(theirs.fileno())},
            pass_fds=[theirs.fileno()],
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        began_at = time.monotonic()
        _, said = process.communicate(timeout=FOR_EVER_S)
        assert time.monotonic() - began_at < FOR_EVER_S
        assert process.returncode == communicators.STUCK_EXIT_CODE
        assert "a communicator's abort did not return within 0.2 s" in said
        decoder, heard = channel.Decoder(), []
        while received := ours.recv(1 << 16):
            heard += decoder.feed(received)
    assert heard[-1] == {"type": "stuck", "text": "a communicator's abort did not return within 0.2 s"}
