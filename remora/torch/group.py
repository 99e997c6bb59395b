"""A worker group whose collectives can be left: no peer that is lost or frozen blocks this process.

With gloo the host waits for each collective, until it ends, fails, or the group is to be left.  No Python object
depends on its end: gloo's threads would have to ask for the interpreter then, also while that ends, and the process
would abort.

With NCCL a stream of the device waits for a collective, and the host goes on.  The host waits where it reads a result,
or where a step is to count: for all that was queued so far, and then looks whether the group is to be left.  So what
was computed with the results of a collective that was broken off never counts.  A collective that cannot end holds the
device: everything that waits for the device, even the comparison of two tensors, would wait with it.  So the thread
that learns that the group is to be left aborts the communicators, and the script's thread touches the device only when
that is done.  That thread reads the supervisor's messages, or is the one of `DeviceWatch`.

A group that was left ends in a thread of its own, because its destructor waits for collectives with peers that may not
answer.
"""

from __future__ import annotations

import ctypes
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from remora.script.link import Rendezvous
from remora.torch import (
    forked_processes,  # noqa: F401 - it acts from its import on
    left_groups,
)
from remora.torch.backends import COLLECTIVE_TIMEOUT, process_group, rendezvous_store
from remora.torch.communicators import FORM_S, Forming, abort_beside
from remora.torch.device_watch import DeviceWatch
from remora.torch.ticket import POLL_S, Ticket

#: Seconds between two looks at what stays under way for long.
_LONGEST_POLL_S = 0.5
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
        #: The GPU of its tensors, whose streams wait for collectives; None: the present device.
        self._device = device
        #: The group that this one is a part of; a worker that leaves that one leaves this one too.
        self._parent = parent
        self._lock: threading.Lock = parent._lock if parent else threading.Lock()
        #: That of the whole group; its thread begins with the first collective that a stream waits for.
        self._device_watch: DeviceWatch = (
            parent._device_watch
            if parent
            else DeviceWatch(self._found_by_nccl, self.break_off, COLLECTIVE_TIMEOUT.total_seconds())
        )
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
        """From now on every wait for this group raises PeerLost, also those under way; may be called from any thread.

        What holds a device is aborted; the abort itself goes on beside the caller.
        """
        with self._lock:
            if self._why_broken is None:
                self._why_broken, self.broken_at = why, time.monotonic()
        if self._on_cuda:
            self._abort()
        with self._lock:
            parts = list(self._subgroups)
        for part in parts:
            if part._on_cuda:
                part._abort()

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

    @property
    def on_cuda(self) -> bool:
        """Whether its tensors lie on GPUs."""
        return self._on_cuda

    @property
    def host_waits(self) -> int:
        """How often this process has waited on the host for a device, for collectives of the whole group."""
        return self._device_watch.host_waits

    def wait(self, ticket: Ticket | None) -> None:
        """Wait on the host until a collective is done; raises PeerLost when it will not be."""
        self.wait_in_stream(ticket)
        if ticket is not None:
            self.synchronize()

    def wait_in_stream(self, ticket: Ticket | None) -> None:
        """Let what this thread computes from here on come after a collective; raises PeerLost.

        With NCCL the device waits, and what it computes is of no use where a peer is lost: `synchronize` says so.
        Otherwise it is `wait`.
        """
        if ticket is None:
            return
        if self._on_cuda:
            self.check()
            ticket.wait_in_stream()
        else:
            ticket.wait_briefly()
            while not ticket.is_done and self._why is None:
                ticket.wait_briefly()
        self.check()
        if ticket.error is not None:
            if _is_unusable(ticket.error):
                raise ticket.error
            self._fail(ticket.error)
        if self._on_cuda:
            self._device_watch.add(self._mark(), self.check)

    def forget_done(self) -> None:
        """Let go of the tensors of collectives that are done; otherwise the next one that is started does."""
        self._under_way = [one for one in self._under_way if not one.is_done]

    def synchronize(self) -> None:
        """Wait on the host until the device has come to what `wait_in_stream` was called for, in all parts.

        Raises PeerLost where something of it was broken off: nothing that was computed since then may count.
        """
        if self._on_cuda:
            self._device_watch.wait(self.check)

    def _mark(self) -> Any:
        """An event in the present stream."""
        event = torch.cuda.Event()
        if self._device is None:
            event.record()
        else:
            event.record(torch.cuda.current_stream(self._device))
        return event

    def _fail(self, error: BaseException) -> NoReturn:
        """A collective failed, so a peer is lost, and not to this part of the group alone."""
        self._whole.break_off(f"a peer was lost: {_first_line(error)}")
        raise PeerLost(self._why) from error

    @property
    def _whole(self) -> Group:
        return self if self._parent is None else self._parent._whole

    def _found_by_nccl(self) -> str | None:
        """What NCCL's own watchdog has found out about the communicators, without a look at the device."""
        with self._lock:
            groups = (self, *self._subgroups)
        for one in groups:
            # A thread that ends the group may forget the backend at any time.
            if one._on_cuda and (backend := one._backend) is not None:
                error = backend.get_error()
                if error.name != "SUCCESS":
                    return f"a peer was lost: NCCL reports {error.name}"
        return None

    def _launch(self, start: Callable[[], Any]) -> Ticket | None:
        self.check()
        if self._backend is None:
            return None
        try:
            ticket = Ticket(start())
        except RuntimeError as error:
            if _is_unusable(error):
                raise
            self._fail(error)
        if not self._on_cuda:
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
                lambda forming: process_group(store, place, device, on_cuda, forming), self.check
            )
        made = Group(
            place, backend, store, on_cuda=on_cuda, device=self._device, parent=self, may_outlive=may_outlive
        )
        # The thread that breaks the group off may be going through them.
        with self._lock:
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
        if self._parent is None:
            self._device_watch.stop()

    def _abort(self) -> threading.Thread | None:
        """Begin to abort what is under way: NCCL's kernels wait on the device until then, gloo's threads for peers."""
        with self._lock:
            if self._aborting is None and self._backend is not None:
                self._aborting = abort_beside(self._backend, holds_device=self._on_cuda)
                left_groups.track(self._aborting)
            return self._aborting

    def _end(self) -> None:
        """Begin to end it, with its threads and connections; those that are held up by a frozen peer end with it."""
        aborting = self._abort()

        def end() -> None:
            if aborting is not None:
                aborting.join()
            pause_s = POLL_S
            while not all(one.is_done for one in self._under_way):
                if left_groups.exit_begun.wait(pause_s):
                    self._leak()
                    return
                # A peer whose network is cut off may not answer for half an hour.
                pause_s = min(2 * pause_s, _LONGEST_POLL_S)
            self._under_way.clear()
            self._backend = self._store = None

        ending = threading.Thread(target=end, name="remora-group-end", daemon=True)
        ending.start()
        left_groups.track(ending)

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


def form(
    place: Rendezvous, *, check: Callable[[], None], on_cuda: bool, device: torch.device | None = None
) -> Group:
    """Form the group with the others; `check` is called now and then, and may raise to give up.

    `device`: the GPU of this worker, by default the current one.  Raises PeerLost when the others cannot be reached.
    """
    gpu = _gpu(device) if on_cuda and place.world_size > 1 else None
    if place.world_size == 1:
        return Group(place, None, None, on_cuda=on_cuda, device=device)

    def meet(forming: Forming) -> tuple[Any, Any, Formation]:
        began_at = time.monotonic()
        store = rendezvous_store(place)
        connected_at = time.monotonic()
        backend = process_group(store, place, gpu, on_cuda, forming)
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


def _is_unusable(error: BaseException) -> bool:
    """True when gloo refused a tensor before it sent any of it: no peer is lost, and the script has to be changed."""
    return _first_line(error).startswith(_UNUSABLE)


def _first_line(error: BaseException) -> str:
    return (str(error) or repr(error)).splitlines()[0][:200]
