"""A script's end of the channel to its supervisor (`remora/script/channel.py`); standard library only.

Beside the messages of every script, a script that can regroup in place (`remora.torch`) uses these messages:

Script to supervisor:

- `elastic` `{}`: this script can regroup in place.
- `parted` `{generation, step, why, noticed_s}`: this rank holds the state after `step` (-1: none yet) and waits for a
  `regroup`.  `noticed_s`: the seconds since it saw that its group is broken, where it did.
- `joined` `{generation, step, connect_s, form_s, move_s}`: the group of that generation works, and its newest state is
  the one after `step`.  The seconds until the store of the rendezvous answered, from then on until the workers were
  connected, and from then on until all held that state.
- `pace` `{generation, own_s, shards}`: about once a second: the seconds that this rank computed in a step, with that
  number of shards, until its gradients were there.
- `diverged` `{generation, text}`: the workers of that group do not hold the same weights, or would not with another
  number of them, as `text` says; the script ends with an error.
- `miscomputed` `{generation, ranks, is_known, step, text}`: these ranks compute wrongly; where `is_known` is false some
  of them do, and it cannot be said which.
- `stuck` `{text}`: this process ends itself at once, because the device does not become free, and its script is not at
  fault.

Supervisor to script:

- `part` `{generation}`: leave what that generation's group is doing now, and park.
- `regroup` `{generation, rank, world_size, local_rank, local_world_size, node_rank, master_addr, master_port}`: form
  this group; its generation is higher than every one before.
- `decide` with `action` `regroup`: park at that boundary instead of writing a checkpoint.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from remora.script import channel, collectives
from remora.script.step_profiler import StepProfiler

#: Seconds after which a script that waits for a decision goes on by itself.
_DECISION_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Preemption:
    """A machine of this job is about to be taken."""

    #: Seconds since 1970.
    deadline_at: float
    reason: str


@dataclass(frozen=True)
class Rendezvous:
    """The rank of a process in its worker group, and the address at which the group is formed."""

    generation: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    master_addr: str
    master_port: int

    @classmethod
    def from_message(cls, message: channel.Message) -> Rendezvous:
        """The rendezvous of a `regroup` message; raises KeyError, TypeError or ValueError for a malformed one."""
        return cls(
            generation=int(message["generation"]),
            rank=int(message["rank"]),
            world_size=int(message["world_size"]),
            local_rank=int(message["local_rank"]),
            local_world_size=int(message["local_world_size"]),
            node_rank=int(message["node_rank"]),
            master_addr=str(message["master_addr"]),
            master_port=int(message["master_port"]),
        )

    def export(self) -> None:
        """Make the environment variables say the same."""
        os.environ.update(
            RANK=str(self.rank),
            WORLD_SIZE=str(self.world_size),
            LOCAL_RANK=str(self.local_rank),
            LOCAL_WORLD_SIZE=str(self.local_world_size),
            NODE_RANK=str(self.node_rank),
            GROUP_RANK=str(self.node_rank),
            MASTER_ADDR=self.master_addr,
            MASTER_PORT=str(self.master_port),
            REMORA_GENERATION=str(self.generation),
        )


class SupervisorGone(ConnectionError):
    """The supervisor closed the channel while this process needed it."""


class Link:
    """This process's end of the channel: a background thread reads, the script's thread writes."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.setblocking(True)
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._boundary = 0
        self._hold: object | None = None
        self._target: int | None = None
        #: Whether what was decided last came to all ranks at one boundary: after a long wait each goes on by itself.
        self.is_agreed = False
        self._action = "checkpoint"
        #: The decision under way is the one before the end of this process.
        self._stops = False
        self._asked = False
        #: The number of the decision under way, and of the one for which a checkpoint was asked.
        self._deciding: object | None = None
        self._asked_by: object | None = None
        self._taken: dict[int, bool] = {}
        #: When the last files were handed over, by `time.monotonic`.
        self.taken_at = 0.0
        self._closed = False
        #: Newest generation that is to be left.
        self._parted = -1
        self._regroup: Rendezvous | None = None
        #: Called by the reading thread with the generation to leave.
        self.on_leave: Callable[[int], None] | None = None
        self.preemption: Preemption | None = None
        self._profiler = StepProfiler(self.send)
        #: It goes from boundary to boundary, once per step: where it does not, reports are the ends of steps.
        self._has_boundaries = False
        self.pid = os.getpid()
        self.send({"type": "hello", "version": channel.VERSION, "pid": self.pid})
        threading.Thread(target=self._read, name="remora-channel", daemon=True).start()
        atexit.register(self._close)

    def send(self, message: channel.Message) -> None:
        """Write one message; a supervisor that is gone is no reason for a script to fail."""
        with self._sending, contextlib.suppress(OSError):
            self._socket.sendall(channel.encode(message))

    def report(
        self, step: int, metrics: Mapping[str, float], total_steps: int | None, *, is_again: bool = False
    ) -> None:
        """Report that a step is done; what is not finite is sent as unknown.

        `is_again`: another rank may have reported it, or may have died before it did.
        """
        values: dict[str, float | None] = {}
        for name, value in metrics.items():
            number = float(value)
            values[str(name)] = number if math.isfinite(number) else None
        message = {"type": "report", "step": step, "metrics": values, "total_steps": total_steps}
        self.send({**message, "again": True} if is_again else message)
        if not self._has_boundaries and not is_again:
            self._profiler.step_ended()

    def stalled(self, step: int, seconds: float) -> None:
        """Report the seconds that the checkpoint of a step cost the training loop."""
        self.send({"type": "stalled", "step": step, "stall_s": round(seconds, 6)})

    def reach_boundary(self, at: int | None = None) -> str | None:
        """Count a boundary (or go to boundary `at`), and return what was decided for it.

        `checkpoint`, `regroup` or None.  Waits while the supervisor holds the ranks.
        """
        self._has_boundaries = True
        self._profiler.step_ended()
        with self._changed:
            self._boundary = self._boundary + 1 if at is None else at
            while True:
                if self._target is not None and self._boundary >= self._target:
                    self.is_agreed = self._boundary == self._target
                    self._target = None
                    self._asked = self._action == "checkpoint"
                    self._asked_by = self._deciding
                    return self._action
                if self._hold is None or self._closed or self._is_leaving():
                    return None
                if not self._changed.wait(_DECISION_TIMEOUT_S):
                    self._hold = None
                    return None

    def set_boundary(self, boundary: int) -> None:
        """Count boundaries from here, so that ranks which began at different times count alike."""
        self._has_boundaries = True
        with self._changed:
            self._boundary = boundary

    def hand_over(self, step: int, area: str, folder: str, generation: int | None = None) -> None:
        """Give a rank's files of a checkpoint to the supervisor; stays where the planned end of the process comes.

        They lie in the folder of that name in a storage area of this worker (`scratch` or `memory`), and belong to the
        worker group of `generation`, by default the present one.
        """
        of_group = _generation() if generation is None else generation
        with self._changed:
            self._taken.pop(step, None)
            # What an earlier group saves is not what the present one was asked for.
            asked = self._asked and of_group == _generation()
            self._asked = self._asked and not asked
            asked_by = self._asked_by if asked else None
        message = {"type": "checkpoint", "step": step, "room": area, "folder": folder, "asked": asked}
        if asked_by is not None:
            message["token"] = asked_by
        self.send({**message, "generation": of_group})
        with self._changed:
            self._changed.wait_for(lambda: step in self._taken or self._closed)
            self.taken_at = time.monotonic()
            if self._taken.get(step):
                # The planned end of this process comes now; a step done here would have to be done again.
                self._changed.wait_for(lambda: self._closed or not self._taken[step] or self._is_leaving())

    @property
    def stops(self) -> bool:
        """True while the checkpoint that was asked for is the last act of this process."""
        with self._changed:
            return self._asked and self._stops

    def take_asked(self) -> bool:
        """Whether a checkpoint was asked for since this was last called or one was handed over."""
        with self._changed:
            asked, self._asked = self._asked, False
            return asked

    def must_leave(self, generation: int) -> bool:
        """True when the group of that generation is to be left."""
        with self._changed:
            return self._parted >= generation

    def await_regroup(self, generation: int) -> Rendezvous:
        """Wait for a group that is newer than `generation`, and make the environment say so.

        Raises SupervisorGone when the supervisor has ended.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._closed or (self._regroup is not None and self._regroup.generation > generation)
            )
            rendezvous = self._regroup
            if rendezvous is None or rendezvous.generation <= generation:
                raise SupervisorGone("the supervisor ended while this worker waited for its next group")
            # A decision of the old group counts boundaries that the new one may never see.
            self._hold = self._target = None
        rendezvous.export()
        return rendezvous

    def _is_leaving(self) -> bool:
        return self._parted >= _generation()

    def _read(self) -> None:
        decoder = channel.Decoder()
        while True:
            try:
                received = self._socket.recv(65536)
            except OSError:
                received = b""
            if not received:
                with self._changed:
                    self._closed = True
                    self._changed.notify_all()
                return
            for message in decoder.feed(received):
                with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                    # A message that is not understood must not end the thread that reads the next one.
                    self._receive(message)

    def _receive(self, message: channel.Message) -> None:
        kind = message["type"]
        parted = None
        with self._changed:
            if kind == "hold":
                self._hold = message.get("token")
            elif kind == "decide":
                self._target = int(message["boundary"])
                self._deciding = message.get("token")
                self._hold = None
                self._action = "regroup" if message.get("action") == "regroup" else "checkpoint"
                self._stops = bool(message.get("stop"))
            elif kind == "release":
                self._hold = None
                self._stops = False
                self._taken = dict.fromkeys(self._taken, False)
            elif kind == "taken":
                self._taken[int(message["step"])] = bool(message.get("park"))
            elif kind == "preemption":
                self.preemption = _preemption(message)
            elif kind == "profile":
                self._profiler.ask(message)
            elif kind == "part":
                parted = int(message["generation"])
            elif kind == "regroup":
                self._regroup = Rendezvous.from_message(message)
                parted = self._regroup.generation - 1
            if parted is not None:
                self._parted = max(self._parted, parted)
            boundary, on_leave = self._boundary, self.on_leave
            self._changed.notify_all()
        if kind == "hold":
            self.send({"type": "held", "token": message.get("token"), "boundary": boundary})
        if kind == "dump":
            # Not in this thread, which has to hear that a group is to be left.
            threading.Thread(target=self._report_collectives, name="remora-dump", daemon=True).start()
        if parted is not None and on_leave is not None:
            on_leave(parted)

    def _report_collectives(self) -> None:
        self.send({"type": "collectives", "groups": collectives.last_collectives()})

    def _close(self) -> None:
        if os.getpid() == self.pid:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_WR)


def _generation() -> int:
    try:
        return int(os.environ.get("REMORA_GENERATION", "0"))
    except ValueError:
        return 0


def _preemption(message: channel.Message) -> Preemption | None:
    deadline_at = message.get("deadline_at")
    return None if deadline_at is None else Preemption(float(deadline_at), str(message.get("reason", "")))
