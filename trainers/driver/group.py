"""One worker group as the driver sees it: messages of ranks come in, effects come out (pure; time is an argument).

The driver acts on the effects.  Nothing here waits, sends or stores.  All times are those of one monotonic
clock, except those in records.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from trainers.checkpoints.manifest import ShardFile, doubled_names
from trainers.driver.agreement import Agreement
from trainers.driver.hardware_errors import collective_failure, gpu_failure
from trainers.driver.progress import Progress
from trainers.driver.regrouping import Asked, Cause
from trainers.driver.stragglers import Stragglers
from trainers.driver.verdict import ChildExit

#: Seconds a script gets to write a checkpoint that it was asked for before a stop that nothing forces is given up.
STOP_PATIENCE_S = 120.0
#: Seconds until a periodic checkpoint that was asked for and never came is asked for again, and that one may take.
CHECKPOINT_PATIENCE_S = 600.0
#: Seconds until a checkpoint for a planned stop is asked for again after it failed.
RETRY_S = 5.0
#: Characters of a command's last line of error that are reported with its end.
MOST_WORDS = 300
#: Lines of a command's standard error in which an error is looked for that hardware made: a traceback follows it.
_LAST_LINES = 30
#: The same for its message about weights that differ, with their causes.
MOST_OF_A_CAUSE = 1000
#: What a worker is doing that has not begun, by the `what` of its message; anything else is an input.
_PREPARING = {"environment": "the environment is being built", "image": "the image is being pulled"}
#: Steps that the store can hold.
_MAX_STEP = 2**53
#: Seconds before a deadline at which a planned stop no longer waits for its checkpoint.
DEADLINE_MARGIN_S = 2.0


@dataclass(frozen=True)
class Send:
    """Send an instruction to one rank, or to all."""

    message: dict[str, Any]
    rank: int | None = None


@dataclass(frozen=True)
class Note:
    """Put a record into the journal."""

    kind: str
    body: dict[str, Any]


@dataclass(frozen=True)
class Commit:
    """All files of a checkpoint are in the storage: write its manifest."""

    step: int
    files: tuple[ShardFile, ...]
    #: Which of the group's checkpoints of that step it is.
    take: int = 1


@dataclass(frozen=True)
class Count:
    """Report the counters now, before the record that follows."""


Effect = Send | Note | Commit | Count
#: A checkpoint of a group: its step, and which of those of that step it is.
_Key = tuple[int, int]


@dataclass(frozen=True)
class Unusable:
    """A file of a checkpoint that a rank could not use."""

    folder: str
    file: str
    #: A clause.
    why: str


@dataclass(frozen=True)
class Deadline:
    """When machines go."""

    #: Seconds since 1970, as the cloud gave it.
    at: float
    #: The same by the clock of `now`, which is never set.
    until: float


@dataclass
class StopRequest:
    """A request that this worker group ends at a checkpoint."""

    reason: Asked
    asked_at: float
    #: None: no hurry.
    deadline: Deadline | None
    #: The scripts can change their group in place: they park at the agreed step and need no checkpoint.
    is_in_place: bool = False


@dataclass
class WorkerGroup:
    """State of one worker group."""

    generation: int
    world_size: int
    started_at: float
    progress: Progress
    #: Seconds between periodic checkpoints; None: only before planned stops.
    checkpoint_interval_s: float | None
    #: The ranks prepare an environment or inputs, and none of them begins before all have.
    is_preparing: bool = False
    exits: dict[int, ChildExit] = field(default_factory=dict)
    troubles: dict[int, str] = field(default_factory=dict)
    #: What ranks could not use of the checkpoint that they were given.
    damaged: dict[int, Unusable] = field(default_factory=dict)
    #: Message of the first rank that found workers with other weights; "": none did.
    diverged: str = ""
    #: True once a command has failed by itself.
    _has_failed: bool = False
    _last_words: dict[int, str] = field(default_factory=dict)
    #: What ranks wrote last to their standard error.
    _last_lines: dict[int, deque[str]] = field(default_factory=dict)
    #: Ranks whose last lines say nothing about a GPU.
    _unheard: set[int] = field(default_factory=set)
    _unheard_collectives: set[int] = field(default_factory=set)
    #: What ranks said about what they have prepared.
    _prepared: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: True once it was reported that an environment is being built.
    _is_building: bool = False
    #: Ranks whose command is over, for whatever reason.
    ended: set[int] = field(default_factory=set)
    #: Those of them that ended by themselves, whose worker takes no other command.
    left: set[int] = field(default_factory=set)
    #: Ranks whose command got SIGKILL alone, whose worker waits for what follows.
    killed: set[int] = field(default_factory=set)
    #: True once the ranks were asked to end for a planned reason.
    is_stopping: bool = False
    #: True while the worker group changes in place: the ranks park, or have not all joined yet.
    _is_changing: bool = False
    _cooperative: set[int] = field(default_factory=set)
    #: True once a step was reported.
    has_reported: bool = False
    #: Ranks that write a checkpoint, and since when.
    _saving: dict[int, float] = field(default_factory=dict)
    #: Files of ranks, by step and take, in the order in which checkpoints were begun.
    _shards: dict[_Key, dict[int, tuple[ShardFile, ...]]] = field(default_factory=dict)
    #: Ranks whose files of a checkpoint have left their machine, but are not stored yet.
    _relayed: dict[_Key, set[int]] = field(default_factory=dict)
    _agreement: Agreement | None = None
    _agreed_step: int | None = None
    _agreements: int = 0
    _stop: StopRequest | None = None
    _checkpoint_at: float = 0.0
    #: Not before this time another agreement is begun.
    _ask_again_at: float = 0.0

    def __post_init__(self) -> None:
        self._checkpoint_at = self.started_at
        self._stragglers = Stragglers(self.world_size)

    @property
    def is_cooperative(self) -> bool:
        """True when every rank talks to us and has done a step, so that it can checkpoint when asked."""
        return len(self._cooperative) == self.world_size and self.has_reported and not self.ended

    @property
    def wants_to_stop(self) -> bool:
        """True from the request of a planned stop on."""
        return self._stop is not None or self._is_changing or self.is_stopping

    @property
    def parks_to(self) -> Cause | None:
        """What the ranks were asked to park for at an agreed step; None: they were not."""
        if self._stop is None or not self._stop.is_in_place or self._stop.reason == "pause":
            return None
        return self._stop.reason

    @property
    def is_saving(self) -> bool:
        """True while a rank writes a checkpoint, and no step has ended since it began to."""
        return bool(self._saving)

    def receive(self, rank: int, message: dict[str, Any], now: float) -> Iterator[Effect]:
        """Take a message of a rank; one that lacks what its type needs is dropped with a remark in the log."""
        try:
            yield from self._receive(rank, message, now)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            text = f"a message of type {message['type']!r} was not understood and dropped: {error!r}"[:500]
            yield Note("log", {"rank": rank, "stream": "remora", "text": text})

    def _receive(self, rank: int, message: dict[str, Any], now: float) -> Iterator[Effect]:
        match message["type"]:
            case "log":
                body = {"rank": rank, "stream": message["stream"], "text": message["text"]}
                if message["stream"] == "stderr":
                    self._read_errors(rank, message["text"])
                yield Note("log", body)
            case "dropped":
                text = f"{message['lines']} lines were dropped: the limit of this attempt's log was reached"
                yield Note("log", {"rank": rank, "stream": "remora", "text": text})
            case "preparing" if self.is_preparing:
                yield from self._report_preparing(message)
            case "prepared" if self.is_preparing:
                yield from self._prepare(rank, message)
            case "hello":
                self._cooperative.add(rank)
            case "report":
                yield from self._report(rank, message, now)
            case "saving":
                self._saving[rank] = now
            case "pace":
                yield from self._compare(rank, message, now)
            case "load":
                yield Note("load", {"rank": rank, "load": _load(message)})
            case "diverged":
                self.diverged = self.diverged or str(message["text"])[:MOST_OF_A_CAUSE]
            case "damaged":
                self.damaged[rank] = Unusable(
                    str(message["folder"]), str(message["file"]), str(message["why"])
                )
            case "held":
                yield from self._answer(rank, message)
            case "relayed":
                yield self._note_relayed(rank, _step(message["step"]), _take(message))
            case "shard":
                self._saving.pop(rank, None)
                yield from self._collect(rank, message, now)
            case "abandoned":
                if int(message.get("generation", self.generation)) == self.generation:
                    yield from self._abandon(rank, _step(message["step"]), now)
            # After the end of a command others have trouble because of it, e.g. with an mpirun that went with it.
            case "trouble" if not self._has_failed:
                self.troubles.setdefault(rank, str(message["message"]))
            case "exit":
                yield from self._exit(rank, message, now)

    def _read_errors(self, rank: int, text: str) -> None:
        if last := _last_line(text):
            self._last_words[rank] = last[:MOST_WORDS]
        lines = self._last_lines.setdefault(rank, deque(maxlen=_LAST_LINES))
        lines.extend(line[:MOST_WORDS] for line in text.rsplit("\n", _LAST_LINES)[-_LAST_LINES:])

    @property
    def broken_ranks(self) -> set[int]:
        """Ranks whose command ended because of a GPU."""
        return {rank for rank, one in self.exits.items() if one.is_failure and one.gpu_failure is not None}

    def gpu_failure_of(self, rank: int) -> str | None:
        """What a rank wrote last about a GPU that failed, a clause; None: nothing."""
        return None if rank in self._unheard else gpu_failure("\n".join(self._last_lines.get(rank, ())))

    def forget_gpu_failure(self, rank: int) -> None:
        """What it wrote does not count."""
        self._unheard.add(rank)

    def collective_failure_of(self, rank: int, end: Mapping[str, Any]) -> str | None:
        """Why the collectives of a rank whose command ended could not go on, a clause; None: for no such reason."""
        if end.get("exit_code") == 0 or rank in self._unheard_collectives:
            return None
        if stuck := end.get("stuck"):
            return str(stuck)[:MOST_WORDS]
        # A shell that ran the script reports its signal as an exit code.
        is_aborted = end.get("signal") == signal.SIGABRT or end.get("exit_code") == 128 + signal.SIGABRT
        return collective_failure("\n".join(self._last_lines.get(rank, ()))) if is_aborted else None

    def forget_collective_failure(self, rank: int) -> None:
        """Its end is judged as any other."""
        self._unheard_collectives.add(rank)

    def tick(self, now: float) -> Iterator[Effect]:
        """What time alone brings about: periodic checkpoints, and the end of patience."""
        self._saving = {r: at for r, at in self._saving.items() if now - at < CHECKPOINT_PATIENCE_S}
        if self.is_stopping or self._is_changing:
            return
        if self._stop is not None:
            yield from self._push_stop(now)
        elif self._agreement is not None and now - self._agreement.asked_at >= CHECKPOINT_PATIENCE_S:
            yield from self._drop_agreement(now)
        if self.is_stopping or self._agreement is not None or not self.is_cooperative:
            return
        if now < self._ask_again_at:
            return
        if self._stop is not None:
            yield from self._ask(now, self._stop.reason, is_stop=True)
        elif (
            self.checkpoint_interval_s is not None and now - self._checkpoint_at >= self.checkpoint_interval_s
        ):
            yield from self._ask(now, "interval", is_stop=False)

    def request_stop(
        self, reason: Asked, now: float, deadline: Deadline | None = None, *, is_in_place: bool = False
    ) -> Iterator[Effect]:
        """Ask for an end of this worker group at an agreed step; asked again, the earlier deadline counts.

        The ranks write a checkpoint there and end, or, with `is_in_place`, park there and wait for the next group.
        While the worker group changes in place no rank reaches such a step.
        """
        if self._is_changing:
            return
        if self._stop is not None:
            if deadline is not None:
                known = self._stop.deadline
                # The same one was converted when it first arrived: the clock may have been set since.
                if known is not None and (known.at == deadline.at or known.until <= deadline.until):
                    return
                self._stop.deadline = deadline
                yield Send({"type": "preemption", "deadline_at": deadline.at, "reason": reason})
            return
        self._stop = StopRequest(reason, now, deadline, is_in_place)
        if deadline is not None:
            yield Send({"type": "preemption", "deadline_at": deadline.at, "reason": reason})
        yield from self.tick(now)

    def committed(self, step: int, now: float, take: int = 1) -> Iterator[Effect]:
        """The manifest of a checkpoint was written."""
        self._checkpoint_at = now
        self._forget((step, take))
        if self._agreement is not None and step == self._agreed_step:
            is_stop = self._agreement.is_stop
            self._agreement = None
            self._agreed_step = None
            if is_stop:
                yield from self._end()
            else:
                # A stop that was asked for meanwhile needs a checkpoint at which the ranks park.
                yield from self.tick(now)

    def _report_preparing(self, message: dict[str, Any]) -> Iterator[Effect]:
        doing = _PREPARING.get(message["what"], "downloading")
        if message["what"] in _PREPARING and not self._is_building:
            self._is_building = True
            text = f"{doing[0].upper()}{doing[1:]}."
            yield Note("event", _event("environment.preparing", text))
        ready = f"{len(self._prepared)} of {self.world_size} workers are ready"
        yield Note("progress", {"preparing": f"{doing}: {str(message['state'])[:200]}; {ready}"})

    def _prepare(self, rank: int, message: dict[str, Any]) -> Iterator[Effect]:
        self._prepared[rank] = message
        if len(self._prepared) < self.world_size:
            return
        self.is_preparing = False
        if message["digest"] is None:
            yield Note("progress", {"state": "running"})
            yield Send({"type": "begin"})
            return
        if len({str(one["digest"]) for one in self._prepared.values()}) > 1:
            text = "the nodes have different environments or images of this name: what workers compute may differ"
            yield Note("log", {"rank": rank, "stream": "remora", "text": text})
        build_s = max(float(one["build_s"]) for one in self._prepared.values())
        digest, packages = str(message["digest"])[:64], int(message["packages"])
        how = f"it took {build_s:.1f} s" if build_s else "it was there already"
        yield Note(
            "event",
            _event(
                "environment.ready",
                f"All workers have the environment of the job: {how}.",
                digest=digest,
                packages=packages,
                build_s=build_s,
            ),
        )
        yield Note("progress", {"state": "running", "environment": digest})
        yield Send({"type": "begin"})

    def _report(self, rank: int, message: dict[str, Any], now: float) -> Iterator[Effect]:
        step, total_steps = _step(message["step"]), message.get("total_steps")
        total_steps = None if total_steps is None else _step(total_steps)
        values = {str(name): _finite(value) for name, value in (message.get("metrics") or {}).items()}
        self.has_reported = True
        if rank != 0:
            return
        self._saving.clear()
        before = self.progress
        if message.get("again") and before.step is not None and step <= before.step:
            # A new rank 0 repeats what the one before it may not have handed over; this much had arrived.
            return
        self.progress = before.report(step, total_steps, now)
        if before.is_behind and not self.progress.is_behind:
            # A reader of a new step finds the repeated ones, and what they cost, counted before it.
            yield Count()
        if values:
            yield Note("metric", {"step": step, "world_size": self.world_size, "values": values})
        if before.group_step is None or before.is_behind is not self.progress.is_behind:
            # What is paid for from now on.
            yield Note("progress", {"phase": "recomputing" if self.progress.is_behind else "training"})
        if before.lost_since is not None and self.progress.lost_since is None:
            pause_s = round(now - before.lost_since, 3)
            repeated = self.progress.repeated_steps - before.repeated_before
            again = (
                f" and {repeated} {'step was' if repeated == 1 else 'steps were'} done again"
                if repeated
                else ""
            )
            text = f"Step {step} is the first new one after the loss; it took {pause_s:.1f} s{again}."
            again_s = round(now - (before.group_began_at or now), 3) if repeated else 0.0
            resumed = _event(
                "training.resumed",
                text,
                step=step,
                pause_s=pause_s,
                repeated_steps=repeated,
                recomputing_s=again_s,
            )
            yield Note("event", resumed)

    def _compare(self, rank: int, message: dict[str, Any], now: float) -> Iterator[Effect]:
        if message["generation"] != self.generation:
            return
        own_s, shards = float(message["own_s"]), int(message["shards"])
        for one in self._stragglers.measure(rank, own_s, shards, now):
            text = (
                f"Rank {one.rank} is slower than the others, which wait for it in every step: its own part of a step "
                f"takes {one.own_s:.3f} s, that of the others {one.others_s:.3f} s."
            )
            mine_s, others_s = round(one.own_s, 4), round(one.others_s, 4)
            yield Note(
                "event", _event("worker.straggles", text, rank=one.rank, own_s=mine_s, others_s=others_s)
            )

    def _answer(self, rank: int, message: dict[str, Any]) -> Iterator[Effect]:
        if self._agreement is None:
            return
        boundary = self._agreement.answer(rank, int(message["token"]), int(message["boundary"]))
        if boundary is not None:
            is_stop = self._stop is not None
            self._agreement.is_stop = is_stop
            action = "checkpoint" if self.parks_to is None else "regroup"
            token = self._agreement.token
            yield Send(
                {"type": "decide", "token": token, "boundary": boundary, "stop": is_stop, "action": action}
            )

    def _collect(self, rank: int, message: dict[str, Any], now: float) -> Iterator[Effect]:
        step = _step(message["step"])
        if message.get("generation", self.generation) != self.generation:
            return
        if message.get("asked") and self._is_of_agreement(message.get("token")):
            self._agreed_step = step
        take = _take(message)
        shards = self._shards.setdefault((step, take), {})
        shards[rank] = tuple(message["files"])
        if len(shards) < self.world_size:
            return
        files = tuple(file for one in sorted(shards) for file in shards[one])
        doubled = doubled_names(files)
        if doubled:
            text = (
                f"The checkpoint of step {step} is unusable: several ranks wrote {', '.join(doubled[:3])}."
                " Write it on rank 0 only, or put the rank into the name."
            )
            yield Note("event", _event("checkpoint.refused", text, step=step, names=doubled))
            yield from self.failed(step, now)
        else:
            yield Commit(step, files, take)

    def _is_of_agreement(self, token: object) -> bool:
        """A checkpoint was asked for by the agreement under way, by its token; an older library says none (None)."""
        agreement = self._agreement
        return agreement is not None and agreement.decided is not None and token in (None, agreement.token)

    def failed(self, step: int, now: float) -> Iterator[Effect]:
        """A checkpoint came to nothing; ranks that wait for the planned stop that it was for go on."""
        for key in [one for one in {*self._shards, *self._relayed} if one[0] == step]:
            self._shards.pop(key, None)
            self._relayed.pop(key, None)
        if self._agreement is not None and self._agreement.decided is not None:
            yield from self._drop_agreement(now)

    def _abandon(self, rank: int, step: int, now: float) -> Iterator[Effect]:
        self._saving.pop(rank, None)
        text = f"The checkpoint of step {step} was abandoned by rank {rank}; its log says why."
        yield Note("event", _event("checkpoint.abandoned", text, step=step, rank=rank))
        yield from self.failed(step, now)

    def _drop_agreement(self, now: float) -> Iterator[Effect]:
        assert self._agreement is not None
        yield Send({"type": "release", "token": self._agreement.token})
        self._agreement = None
        self._agreed_step = None
        self._ask_again_at = now + RETRY_S

    def _exit(self, rank: int, message: dict[str, Any], now: float) -> Iterator[Effect]:
        self.ended.add(rank)
        if self._agreement is not None and self._agreement.decided is None:
            # This rank will never answer, and the others would wait for it.
            yield from self._drop_agreement(now)
        if message.get("stopped") and message.get("exit_code") != 0:
            return
        if rank not in self.killed:
            self.left.add(rank)
        self.exits[rank] = ChildExit(
            rank=rank,
            at=now,
            exit_code=message.get("exit_code"),
            signal=message.get("signal"),
            start_failed=message.get("start_failed"),
            environment_failed=message.get("environment_failed"),
            excess=message.get("excess"),
            last_words=self._last_words.get(rank, ""),
            gpu_failure=self.gpu_failure_of(rank),
            collective_failure=self.collective_failure_of(rank, message),
        )
        self._has_failed = self._has_failed or self.exits[rank].is_failure

    @property
    def has_failed(self) -> bool:
        """True once a command has failed by itself."""
        return self._has_failed

    @property
    def is_done(self) -> bool:
        """True when the command of every rank returned 0."""
        return len(self.exits) == self.world_size and not self._has_failed

    def incomplete(self) -> Iterator[Effect]:
        """Checkpoints that some ranks never took part in, reported once the group is over."""
        for (step, _), shards in sorted(self._shards.items()):
            missing = sorted(set(range(self.world_size)) - shards.keys())
            if missing and len(shards) < self.world_size and not self.is_stopping:
                names = ", ".join(map(str, missing))
                text = (
                    f"The checkpoint of step {step} never became complete: ranks {names} did not call"
                    f" checkpoint({step}). Call it on every rank."
                )
                yield Note("event", _event("checkpoint.incomplete", text, step=step, missing=missing))

    def _ask(self, now: float, reason: str, *, is_stop: bool) -> Iterator[Effect]:
        self._agreements += 1
        self._agreement = Agreement(
            token=self._agreements,
            ranks=frozenset(range(self.world_size)),
            reason=reason,
            is_stop=is_stop,
            asked_at=now,
        )
        self._checkpoint_at = now
        yield Send({"type": "hold", "token": self._agreements})

    def follow(self, generation: int, world_size: int, now: float) -> WorkerGroup:
        """The worker group that takes over in place once its ranks have joined: other ranks, the same scripts."""
        group = WorkerGroup(
            generation=generation,
            world_size=world_size,
            started_at=now,
            progress=self.progress.regroup(),
            checkpoint_interval_s=self.checkpoint_interval_s,
        )
        group._cooperative = set(range(world_size))
        group.has_reported = True
        group._checkpoint_at = self._checkpoint_at
        group._is_changing = True
        return group

    def _push_stop(self, now: float) -> Iterator[Effect]:
        assert self._stop is not None
        deadline = self._stop.deadline
        if deadline is not None and now >= deadline.until - DEADLINE_MARGIN_S:
            if self._stop.is_in_place:
                # The node's end will be seen like any other loss, and nothing is lost by it.
                return
            if self._is_safe():
                # All files have left the machines that go: the stop comes with the commit.
                return
            yield from self._end()
        elif deadline is None and now - self._stop.asked_at >= STOP_PATIENCE_S:
            # Nothing forces this stop, and ending the script now would throw its work away.
            text = "The script was asked for a checkpoint and made none; it goes on without changing size."
            yield Note("event", _event("checkpoint.ignored", text))
            self._stop = None
            if self._agreement is not None:
                yield from self._drop_agreement(now)

    def _note_relayed(self, rank: int, step: int, take: int) -> Effect:
        self._relayed.setdefault((step, take), set()).add(rank)
        text = f"The machine of rank {rank} may go: its files of step {step} lie on the driver's machine."
        return Note("event", _event("checkpoint.relayed", text, step=step, rank=rank))

    def _is_safe(self) -> bool:
        """True when some step's files are all stored, or on their way to the storage from a machine that stays."""
        return any(
            len(relayed | self._shards.get(key, {}).keys()) == self.world_size
            for key, relayed in self._relayed.items()
        )

    def park(self) -> None:
        """The ranks park: nothing is agreed upon any more, and no stop that was planned ends this group."""
        self._is_changing = True
        self._stop = self._agreement = self._agreed_step = None

    def join(self) -> None:
        """All ranks of a group that took over in place have joined it."""
        self._is_changing = False

    def stop(self) -> None:
        """All ranks are asked to end: nothing is agreed upon any more."""
        self.is_stopping = True

    def _end(self) -> Iterator[Effect]:
        self.stop()
        yield Send({"type": "stop", "at_once": True})

    def _forget(self, key: _Key) -> None:
        """Forget a checkpoint, and those that were begun before it: after going back, steps begin again below."""
        for known in list(self._shards) if key in self._shards else ():
            del self._shards[known]
            self._relayed.pop(known, None)
            if known == key:
                return


def _last_line(text: str) -> str:
    """The last of one or more lines that is not blank, "" when all are."""
    return text.rstrip().rpartition("\n")[2].strip()


def _load(message: Mapping[str, Any]) -> dict[str, Any]:
    gpu = message["gpu"]
    return {
        "cpu": float(message["cpu"]),
        "gpu": None if gpu is None else float(gpu),
        "gpus": int(message["gpus"]),
    }


def _step(value: Any) -> int:
    step = int(value)
    if not 0 <= step <= _MAX_STEP:
        raise ValueError(f"step {step} is not between 0 and 2**53")
    return step


def _take(message: dict[str, Any]) -> int:
    take = int(message.get("take", 1))
    if take < 1:
        raise ValueError(f"there is no checkpoint {take} of a step")
    return take


def _finite(value: Any) -> float | None:
    number = float("nan") if value is None else float(value)
    return number if math.isfinite(number) else None


def _event(kind: str, message: str, **data: Any) -> dict[str, Any]:
    return {"kind": kind, "message": message, "data": data}
