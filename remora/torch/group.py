"""A worker group whose collectives can be left: no peer that is lost or frozen blocks this process.

Collectives are started asynchronously; a waiting thread is woken by their end, by their failure, or when the group is
to be left.  With gloo no Python object depends on their end: its threads would have to ask for the interpreter then,
also while that ends, and the process would abort.  With NCCL a collective that cannot end holds the device: everything
that waits for the device, even the comparison of two tensors, would wait with it.  So the thread that learns that the
group is to be left aborts the communicators, and the script's thread touches the device only when that is done.  A
group that was left ends in a thread of its own, because its destructor waits for collectives with peers that may not
answer.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import datetime
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from remora.script import native_threads
from remora.script.link import Rendezvous
from remora.torch.communicators import FORM_S, Forming, abort_beside, make_communicators

#: Seconds until a collective fails by itself, as in `torch.distributed`.
_COLLECTIVE_TIMEOUT = datetime.timedelta(seconds=1800)
#: Seconds that the end of the process waits for what groups that were left have still under way.
_EXIT_WAIT_S = 3.0
#: Seconds that each thread gets to see that it is waited for no longer.
_EXIT_JOIN_S = 0.5
#: Seconds between two looks at a GPU's queue.
_DEVICE_POLL_S = 2e-5
#: Seconds for which a wait does not see that the group is to be left; less than a person, or a deadline, would notice.
_POLL_S = 0.01
_POLL = datetime.timedelta(seconds=_POLL_S)
#: Seconds between two looks at what stays under way for long.
_LONGEST_POLL_S = 0.5
#: Set when the end of the process waits no longer for groups that were left.
_exit_begun = threading.Event()
#: How gloo begins to say that it cannot send tensors of this type, size or device (torch's ProcessGroupGloo.cpp).
_UNUSABLE = ("Invalid scalar type", "ProcessGroupGloo::")


class PeerLost(RuntimeError):
    """A collective cannot end: a peer vanished, or this worker has to leave its group."""


@dataclass(frozen=True)
class Formation:
    """How long a group took to form, in seconds."""

    #: Until the store of the rendezvous answered.
    connect_s: float = 0.0
    #: From then on until the workers were connected to each other.
    form_s: float = 0.0


class Ticket:
    """One collective under way."""

    def __init__(self, changed: threading.Condition, work: Any, *, on_cuda: bool) -> None:
        self.work = work
        self.error: BaseException | None = None
        self._changed = changed
        self._is_done = False
        self._is_watched = False
        if on_cuda:
            self._watch()

    @property
    def is_done(self) -> bool:
        """True when it ended, one way or the other; `error` says which."""
        if not (self._is_done or self._is_watched) and self.work.is_completed():
            try:
                self.work.wait()
            except RuntimeError as error:
                self.error = error
            self._is_done = True
        return self._is_done

    def wait_briefly(self) -> None:
        """Wait inside torch, where no other thread can wake this one, but for a moment only.

        Most collectives end in it, and then no other thread has to ask for the interpreter.
        """
        if not (self._is_done or self._is_watched):
            with contextlib.suppress(RuntimeError):  # it failed, or the moment is over: `is_done` knows
                self.work.wait(_POLL)

    def leak(self) -> None:
        """Never free what torch has of it: the last to let go of a tensor needs the interpreter, which ends."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.work))

    def _watch(self) -> None:
        """From now on its end wakes the threads that wait for the condition."""
        self._is_watched = True
        self.work.get_future().add_done_callback(self._end)

    def _end(self, future: Any) -> None:
        try:
            future.value()
        except Exception as error:
            self.error = error
        with self._changed:
            self._is_done = True
            self._changed.notify_all()


class Group:
    """The workers of one generation, as seen by one of them.

    Collectives return a Ticket for `wait`, or None in a group of a single worker; they raise PeerLost.
    """

    def __init__(
        self,
        place: Rendezvous,
        backend: Any,
        store: Any,
        *,
        on_cuda: bool,
        device: torch.device | None = None,
        parent: Group | None = None,
        may_outlive: bool = False,
    ) -> None:
        self.rendezvous = place
        self.rank = place.rank
        self.world_size = place.world_size
        self._backend = backend
        self._store = store
        self._on_cuda = on_cuda
        #: The GPU of its tensors, where they lie on one.
        self._device = device
        #: The group that this one is a part of; a worker that leaves that one leaves this one too.
        self._parent = parent
        self._changed: threading.Condition = parent._changed if parent else threading.Condition()
        #: A collective may be under way for ever once this was left, because a peer that lives never begins it; and
        #: one that ends while the interpreter does must not ask for it.
        self._may_outlive = may_outlive and not on_cuda
        self._why_broken: str | None = None
        #: When this worker saw that the group is to be left, by `time.monotonic`; None: it has not.
        self.broken_at: float | None = None
        self.formation = Formation()
        self._under_way: list[Ticket] = []
        self._is_left = False
        #: Groups of some of its members, whose communicators hold the device as this one's does.
        self._subgroups: weakref.WeakSet[Group] = weakref.WeakSet()
        self._aborting: threading.Thread | None = None

    @property
    def _why(self) -> str | None:
        return self._why_broken or (self._parent._why if self._parent else None)

    def break_off(self, why: str) -> None:
        """Wake the threads that wait for this group, with PeerLost; may be called from any thread.

        What holds a device is aborted before; the abort itself goes on beside the caller.
        """
        with self._changed:
            if self._why_broken is None:
                self._why_broken, self.broken_at = why, time.monotonic()
        if self._on_cuda:
            self._abort()
        with self._changed:
            parts = list(self._subgroups)
        for part in parts:
            if part._on_cuda:
                part._abort()
        with self._changed:
            self._changed.notify_all()

    def check(self) -> None:
        """Raise PeerLost when this group is to be left."""
        if (why := self._why) is not None:
            raise PeerLost(why)

    def sum(self, tensor: torch.Tensor) -> Ticket | None:
        """Start to replace `tensor` by its sum over all workers."""
        return self._launch(lambda: self._backend.allreduce([tensor]))

    def broadcast(self, tensor: torch.Tensor, root: int) -> Ticket | None:
        """Start to replace `tensor` by that of rank `root`."""
        return self._launch(lambda: self._backend.broadcast(tensor, root))

    def exchange(
        self, received: torch.Tensor, sent: torch.Tensor, counts_in: Sequence[int], counts_out: Sequence[int]
    ) -> Ticket | None:
        """Start to send `counts_out[r]` elements of `sent` to each rank r, and get `counts_in[r]` from it."""
        return self._launch(
            lambda: self._backend.alltoall_base(received, sent, list(counts_in), list(counts_out))
        )

    def gather(self, received: torch.Tensor, sent: torch.Tensor) -> Ticket | None:
        """Start to put the `sent` of all ranks one after the other into `received`."""
        if self._backend is None:
            received.copy_(sent)
        return self._launch(lambda: self._backend._allgather_base(received, sent))

    def start(self, collective: Callable[[Any], Any]) -> Ticket | None:
        """Start any other collective of the backend, which is handed over; None where a single worker is alone."""
        return self._launch(lambda: collective(self._backend))

    def wait(self, ticket: Ticket | None) -> None:
        """Wait until a collective is done; raises PeerLost when it will not be."""
        if ticket is None:
            return
        if self._on_cuda:
            with self._changed:
                self._changed.wait_for(lambda: ticket.is_done or self._why is not None)
        else:
            ticket.wait_briefly()
            while not ticket.is_done and self._why is None:
                ticket.wait_briefly()
        self.check()
        if ticket.error is not None:
            if _is_unusable(ticket.error):
                raise ticket.error
            self.break_off(f"a peer was lost: {_first_line(ticket.error)}")
            self.check()
        if self._on_cuda:
            self._wait_on_device(ticket)

    def forget_done(self) -> None:
        """Let go of the tensors of collectives that are done; otherwise the next one that is started does."""
        self._under_way = [one for one in self._under_way if not one.is_done]

    def _wait_on_device(self, ticket: Ticket) -> None:
        """With NCCL a collective is 'done' when it is queued: wait for the queue, but not for ever."""
        ticket.work.wait()
        event = torch.cuda.Event()
        event.record()
        while not event.query():
            self.check()
            time.sleep(_DEVICE_POLL_S)

    def _launch(self, start: Callable[[], Any]) -> Ticket | None:
        self.check()
        if self._backend is None:
            return None
        try:
            ticket = Ticket(self._changed, start(), on_cuda=self._on_cuda)
        except RuntimeError as error:
            if _is_unusable(error):
                raise
            self.break_off(f"a peer was lost: {_first_line(error)}")
            raise PeerLost(self._why_broken) from error
        self._under_way = [*(one for one in self._under_way if not one.is_done), ticket]
        return ticket

    def subgroup(
        self, members: Sequence[int], name: str, *, on_cuda: bool | None = None, may_outlive: bool = False
    ) -> Group:
        """A group of some ranks; every member calls it, with the same members and name.

        `on_cuda`: whether its tensors lie on GPUs, as those of this group unless it is said.  `may_outlive`: some of
        its members may leave it before they begin a collective that others wait for, and live on.
        """
        on_cuda = self._on_cuda if on_cuda is None else on_cuda
        place = Rendezvous(
            self.rendezvous.generation,
            members.index(self.rank),
            len(members),
            0,
            1,
            0,
            self.rendezvous.master_addr,
            0,
        )
        store = None if self._store is None else dist.PrefixStore(name, self._store)
        backend = None
        if len(members) > 1:
            device = self._device if on_cuda else None
            backend = _in_background(
                lambda forming: _process_group(store, place, device, on_cuda, forming), self.check
            )
        made = Group(
            place, backend, store, on_cuda=on_cuda, device=self._device, parent=self, may_outlive=may_outlive
        )
        # The thread that breaks the group off may be going through them.
        with self._changed:
            self._subgroups.add(made)
        if on_cuda and self._why is not None:
            # The group is to be left since it was made.
            made._abort()
        return made

    def abandon(self) -> None:
        """Leave the group for good; when this returns the device is free.

        Where it does not become free, because an abort does not return, this process ends (`communicators.py`).
        """
        self.break_off("the group was left")
        if self._backend is not None and not self._is_left:
            self._is_left = True
            if self._may_outlive:
                self._leak()
                self._abort()
            else:
                self._end()
        for one in (self, *self._subgroups):
            if one._on_cuda and one._aborting is not None:
                one._aborting.join()

    def _abort(self) -> threading.Thread | None:
        """Begin to abort what is under way: NCCL's kernels wait on the device until then, gloo's threads for peers."""
        with self._changed:
            if self._aborting is None and self._backend is not None:
                self._aborting = abort_beside(self._backend, holds_device=self._on_cuda)
                _track(self._aborting)
            return self._aborting

    def _end(self) -> None:
        """Begin to end it, with its threads and connections; those that are held up by a frozen peer end with it."""
        aborting = self._abort()

        def end() -> None:
            if aborting is not None:
                aborting.join()
            pause_s = _POLL_S
            while not all(one.is_done for one in self._under_way):
                if _exit_begun.wait(pause_s):
                    self._leak()
                    return
                # A peer whose network is cut off may not answer for half an hour.
                pause_s = min(2 * pause_s, _LONGEST_POLL_S)
            self._under_way.clear()
            self._backend = self._store = None

        ending = threading.Thread(target=end, name="remora-group-end", daemon=True)
        ending.start()
        _track(ending)

    def _leak(self) -> None:
        """Never run its destructor, which joins threads that may be blocked in a collective for ever."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._backend))
        for ticket in self._under_way:
            ticket.leak()

    def close(self) -> None:
        """End a group for which no worker waits any more."""
        if self._on_cuda and (aborting := self._abort()) is not None:
            aborting.join()
        self._backend = self._store = None


#: Threads that end groups which were left.
_ending_threads: list[threading.Thread] = []


def _track(thread: threading.Thread) -> None:
    _ending_threads[:] = [*(one for one in _ending_threads if one.is_alive()), thread]


@atexit.register
def _await_ending() -> None:
    """Let the threads of groups that were left come back now: later, one that reports its error would end the process.

    A thread that asks for the interpreter's lock while the interpreter ends is ended itself, in the middle of gloo.
    """
    give_up_at = time.monotonic() + _EXIT_WAIT_S
    for one in list(_ending_threads):
        one.join(max(0.0, give_up_at - time.monotonic()))
    # What is left waits for a peer that may answer at any time: from now on nothing of it needs the interpreter.
    _exit_begun.set()
    for one in list(_ending_threads):
        one.join(_EXIT_JOIN_S)
    native_threads.await_rest()


def form(
    place: Rendezvous, *, check: Callable[[], None], on_cuda: bool, device: torch.device | None = None
) -> Group:
    """Form the group with the others; `check` is called now and then, and may raise to give up.

    `device`: the GPU of this worker, by default the current one.  Raises PeerLost when the others cannot be reached.
    """
    gpu = _gpu(device) if on_cuda and place.world_size > 1 else None
    if place.world_size == 1:
        return Group(place, None, None, on_cuda=on_cuda)

    def meet(forming: Forming) -> tuple[Any, Any, Formation]:
        began_at = time.monotonic()
        store = _store(place)
        connected_at = time.monotonic()
        backend = _process_group(store, place, gpu, on_cuda, forming)
        return backend, store, Formation(connected_at - began_at, time.monotonic() - connected_at)

    backend, store, formation = _in_background(meet, check)
    group = Group(place, backend, store, on_cuda=on_cuda, device=gpu)
    group.formation = formation
    return group


def _in_background(connect: Callable[[Forming], Any], check: Callable[[], None]) -> Any:
    """Result of `connect`, which may hang when a peer dies meanwhile; then its thread is left alone."""
    outcome: list[Any] = []
    errors: list[BaseException] = []
    ended = threading.Event()
    forming = Forming()

    def run() -> None:
        try:
            outcome.append(connect(forming))
        except BaseException as error:
            errors.append(error)
        ended.set()

    threading.Thread(target=run, name="remora-rendezvous", daemon=True).start()
    try:
        while not ended.wait(0.05):
            check()
            _check_time(forming)
    except BaseException:
        forming.give_up()
        raise
    if errors:
        forming.give_up()
        raise PeerLost(f"the worker group could not be formed: {_first_line(errors[0])}") from errors[0]
    return outcome[0]


def _check_time(forming: Forming) -> None:
    if forming.is_late:
        raise PeerLost(
            f"the worker group could not be formed: its communicators took longer than {FORM_S:g} s"
        )


def _gpu(device: torch.device | None) -> torch.device:
    """The device with its number: the thread that forms the group has another current one."""
    if device is not None and device.index is not None:
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _store(place: Rendezvous) -> Any:
    # torchrun's agent, or the user's own `init_process_group`, may serve the store already.
    is_served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or dist.is_initialized()
    store = dist.TCPStore(
        place.master_addr,
        place.master_port,
        is_master=place.rank == 0 and not is_served,
        wait_for_workers=False,
        timeout=_COLLECTIVE_TIMEOUT,
    )
    # torchrun keeps its store over restarts.  Remora's generations distinguish groups by themselves, and not all who
    # meet in one were started in the same.
    restarts = "0" if "REMORA_GENERATION" in os.environ else os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"remora/{place.generation}/{restarts}", store)


def _process_group(
    store: Any, place: Rendezvous, device: torch.device | None, on_cuda: bool, forming: Forming
) -> Any:
    if not on_cuda:
        return dist.ProcessGroupGloo(store, place.rank, place.world_size, _COLLECTIVE_TIMEOUT)
    return make_communicators(store, place, _gpu(device), _COLLECTIVE_TIMEOUT, forming)


def _is_unusable(error: BaseException) -> bool:
    """True when gloo refused a tensor before it sent any of it: no peer is lost, and the script has to be changed."""
    return _first_line(error).startswith(_UNUSABLE)


def _first_line(error: BaseException) -> str:
    return (str(error) or repr(error)).splitlines()[0][:200]
