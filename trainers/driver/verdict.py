"""Why a worker group failed and what follows (pure).

One cause shows itself many times: when a node dies, every surviving rank's collective fails and its script ends with
an error of its own.  So what happened to machines is looked at before what happened to processes, and among
processes the first one to end is the cause.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from remora.states import EndReason

#: Python's last line when an import fails.
_ABSENT_MODULE = re.compile(r"ModuleNotFoundError: No module named '[\w.]+'$")


@dataclass(frozen=True, kw_only=True)
class ChildExit:
    """How the command of one rank ended by itself."""

    rank: int
    #: When the driver learnt it, by a monotonic clock.
    at: float
    exit_code: int | None = None
    signal: int | None = None
    start_failed: str | None = None
    #: Why the job's Python environment could not be built on its node.
    environment_failed: str | None = None
    #: What it had too much of, when it was ended for that.
    excess: str | None = None
    #: The last line that it wrote to its standard error, which for Python names the error.
    last_words: str = ""
    #: What it wrote about a GPU that failed, a clause.
    gpu_failure: str | None = None
    #: Why its collectives could not go on, where its script is not at fault, a clause.
    collective_failure: str | None = None

    @property
    def is_failure(self) -> bool:
        """True for everything but exit code 0."""
        return self.exit_code != 0


@dataclass(frozen=True, kw_only=True)
class GroupFailure:
    """What is known about a worker group in which something failed."""

    exits: tuple[ChildExit, ...] = ()
    #: Ranks whose node does not answer any more or was drained away.
    lost_nodes: tuple[int, ...] = ()
    #: Ranks whose supervisor died while its node lives.
    lost_supervisors: tuple[int, ...] = ()
    #: What supervisors could not do for their child, by rank: an infrastructure failure, not the script's.
    troubles: tuple[tuple[int, str], ...] = ()
    #: What ranks said of the checkpoint that they were given and cannot use; "": nothing.
    damaged: str = ""
    #: Message of a script about workers that do not hold the same weights; "": there is none.
    diverged: str = ""
    #: The driver had asked this group to end (to shrink or to grow).
    is_planned: bool = False


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What follows a failure."""

    #: True: a new worker group of this attempt takes over.  False: the attempt ends.
    goes_on: bool
    end_reason: EndReason
    message: str
    exit_code: int | None = None


def judge(failure: GroupFailure) -> Verdict:
    """Find the cause of a failure."""
    if failure.diverged:
        # Whichever workers are lost besides: others would go on from weights that are not the same.
        return Verdict(goes_on=False, end_reason=EndReason.DIVERGED, message=failure.diverged)
    if failure.lost_nodes:
        ranks = name_ranks(failure.lost_nodes)
        return Verdict(goes_on=True, end_reason=EndReason.NODE_LOST, message=f"The node of {ranks} was lost.")
    if failure.is_planned:
        return Verdict(
            goes_on=True, end_reason=EndReason.EVICTED, message="The worker group changes its size."
        )
    if failure.damaged:
        text = f"The checkpoint cannot be used: {failure.damaged}."
        return Verdict(goes_on=True, end_reason=EndReason.SUPERVISOR_LOST, message=text)
    if failure.lost_supervisors:
        ranks = name_ranks(failure.lost_supervisors)
        return Verdict(
            goes_on=False, end_reason=EndReason.SUPERVISOR_LOST, message=f"The supervisor of {ranks} died."
        )
    if failure.troubles:
        rank, why = failure.troubles[0]
        return Verdict(goes_on=False, end_reason=EndReason.SUPERVISOR_LOST, message=f"Rank {rank}: {why}.")
    failed = sorted((one for one in failure.exits if one.is_failure), key=lambda one: (one.at, one.rank))
    if broken := [one for one in failed if one.gpu_failure is not None]:
        text = f"The node of rank {broken[0].rank} is sick: {broken[0].gpu_failure}."
        return Verdict(goes_on=True, end_reason=EndReason.NODE_LOST, message=text)
    if failed:
        return _judge_exit(failed[0])
    return Verdict(
        goes_on=False,
        end_reason=EndReason.SUPERVISOR_LOST,
        message="The worker group failed and no process of it says why.",
    )


def too_few_workers(least: int, waited_s: float, start_error: str = "") -> Verdict:
    """The smallest worker group could not be had; `start_error` is why the last one did not start."""
    text = f"No {least} workers could be had for {waited_s:.0f} s."
    if start_error:
        text += f" The last try failed: {start_error[:500]}"
    return Verdict(goes_on=False, end_reason=EndReason.NODE_LOST, message=text)


def _judge_exit(first: ChildExit) -> Verdict:
    if first.environment_failed is not None:
        return Verdict(
            goes_on=False,
            end_reason=EndReason.ENVIRONMENT_FAILED,
            message=f"The environment of the job could not be built for rank {first.rank}: {first.environment_failed}",
        )
    if first.start_failed is not None:
        return Verdict(
            goes_on=False,
            end_reason=EndReason.START_FAILED,
            message=f"The command could not be started on rank {first.rank}: {first.start_failed}",
        )
    if first.collective_failure is not None:
        return Verdict(
            goes_on=True,
            end_reason=EndReason.SUPERVISOR_LOST,
            message=f"The command of rank {first.rank} is not at fault: {first.collective_failure}.",
        )
    if first.signal is not None:
        why = f": {first.excess}" if first.excess is not None else ""
        return Verdict(
            goes_on=False,
            end_reason=EndReason.SIGNAL,
            message=f"The command of rank {first.rank} was ended by {_signal_name(first.signal)}{why}.",
        )
    why = f": {first.last_words}" if first.last_words else "; its log says why."
    if _ABSENT_MODULE.match(first.last_words):
        why += (
            ". List it in `environment.pip`, put it into `code` or the job's image, or install it on the nodes in the"
            " environment whose `python` the command names."
        )
    return Verdict(
        goes_on=False,
        end_reason=EndReason.EXIT_CODE,
        message=f"The command of rank {first.rank} ended with exit code {first.exit_code}{why}",
        exit_code=first.exit_code,
    )


def name_ranks(ranks: tuple[int, ...]) -> str:
    """The ranks for people."""
    names = ", ".join(str(rank) for rank in sorted(ranks))
    return f"rank {names}" if len(ranks) == 1 else f"ranks {names}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
