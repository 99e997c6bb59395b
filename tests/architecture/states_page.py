"""The page `docs/states.md`, made from the tables of the life cycle so that it cannot differ from them.

python -m tests.architecture.states_page > docs/states.md
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeVar

from remora.states import AttemptState, EndReason, JobState, NodeState
from service.queue.lifecycle import (
    ATTEMPT_EDGES,
    DEPENDENCY_UNMET,
    JOB_EDGES,
    NODE_EDGES,
    PAUSED_BY_OWNER,
    PREPARING,
    WAITING_FOR_BUDGET,
)
from service.queue.retry import (
    FRUITLESS_LIMIT,
    LOSS_BACKOFF_CAP_S,
    LOSS_BACKOFF_S,
    LOSS_LIMIT,
    NO_PROGRESS,
    USER_BACKOFF_CAP_S,
)
from trainers.driver.change import CHANGE_EDGES, CHANGE_MEANINGS, ChangeState
from trainers.driver.phases import MEANINGS, PHASE_EDGES, Phase

StateT = TypeVar("StateT", bound=StrEnum)

_JOBS: Mapping[JobState, str] = {
    JobState.QUEUED: "Accepted and stored; waits in the queue and for nodes. `reason` and `message` say what for.",
    JobState.ADMITTED: "It has an attempt whose workers do not step yet.",
    JobState.RUNNING: "An attempt trains.",
    JobState.PAUSED: "Its owner, or the cluster's budget, keeps it from running. It uses nothing, keeps its place, and"
    " goes on from its checkpoint: once its owner resumes it, or by itself when the budget allows it again; `message`"
    " says what ends the pause.",
    JobState.SUCCEEDED: "The command of every rank returned 0.",
    JobState.FAILED: "No attempt follows; `reason` says why the last one ended.",
    JobState.CANCELLED: "Ended because its owner asked.",
}

_ATTEMPTS: Mapping[AttemptState, str] = {
    AttemptState.STARTING: "Its driver is being started, or gathers a worker group.",
    AttemptState.RUNNING: "A worker group trains.",
    AttemptState.DRAINING: "Asked to stop; the driver ends its workers.",
    AttemptState.ENDED: "Over; `end_reason` is set and nothing of it is stored any more.",
}

_NODES: Mapping[NodeState, str] = {
    NodeState.REQUESTED: "Its row exists; the provider may not have been asked yet.",
    NodeState.LAUNCHED: "The provider accepted it; its machine starts.",
    NodeState.JOINED: "It is a member of the Ray cluster.",
    NodeState.READY: "It may be given work.",
    NodeState.DRAINING: "It takes no new work and goes at its deadline.",
    NodeState.TERMINATING: "The provider is asked to delete it until it no longer lists it.",
    NodeState.GONE: "It was of use and is no more, or it was not wanted any more.",
    NodeState.FAILED: "It ended before it was of use; `message` says why.",
}

_REASONS: Mapping[EndReason, str] = {
    EndReason.COMPLETED: "every rank returned 0",
    EndReason.EXIT_CODE: "some rank returned another exit code",
    EndReason.SIGNAL: "some rank was ended by a signal; for a script that uses `remora.torch` a single SIGKILL is no"
    " end, as long as others hold the state, and for other scripts none where a checkpoint was committed since the last"
    " restart; or its files had more than `REMORA_MAX_SHM_BYTES` in `/dev/shm`,"
    " or more than `REMORA_MAX_DISK_BYTES` on a node",
    EndReason.ENVIRONMENT_FAILED: "the Python environment of the job could not be built on a node, or its image could"
    " not be run there; the message has the last lines of uv or podman; or a secret of the job is not there any more",
    EndReason.START_FAILED: "the command could not be started, the code bundle is unusable, or a rank ended with exit"
    " code 0 while all others wait for it in PyTorch's rendezvous",
    EndReason.SUPERVISOR_LOST: "the supervisor of some rank died while its node lived, or something that it needs"
    " failed before the command began",
    EndReason.DRIVER_LOST: "the driver died, or could not be started within five minutes",
    EndReason.HEAD_LOST: "the head of the Ray cluster died",
    EndReason.NODE_LOST: "nodes were lost and `workers.min` could not be had again in time; for a job that InfiniBand "
    "joins, all nodes of its fabric domain were lost; or it ended within a minute of the report that a GPU of its node"
    " is sick",
    EndReason.HANG: "no step ended for far longer than the job's own steps take, and no checkpoint was committed from"
    " which a script that owns its training could start again; or the worker group broke four times at one step"
    " although no worker was lost, or all ranks wait in PyTorch's rendezvous",
    EndReason.DIVERGED: "the workers of a script that uses `remora.torch` do not hold the same weights any more, and"
    " its checkpoints may mix them; the message names the first parameter that differs",
    EndReason.RUN_TIME_EXCEEDED: "`limits.run_time` passed",
    EndReason.BUDGET_SPENT: "`limits.budget` was spent",
    EndReason.CANCELLED: "the owner cancelled the job",
    EndReason.STOPPED_EARLY: "the job's array stops jobs early, and others do better; the message has the figures",
    EndReason.PAUSED: "the owner paused the job, and its workers have ended, after a checkpoint where they write one",
    EndReason.EVICTED: "the job's nodes were given back, as the cluster's budget reached its last step",
}


def mermaid(edges: Iterable[tuple[StrEnum, StrEnum]], *first: StrEnum) -> str:
    """A state diagram of the edges in Mermaid's language, with the states in which it may begin."""
    pairs = list(edges)
    ends = {new for _, new in pairs} - {old for old, _ in pairs}
    lines = [f"[*] --> {one.value}" for one in first]
    lines += [f"{old.value} --> {new.value}" for old, new in pairs]
    lines += [f"{end.value} --> [*]" for end in sorted(ends)]
    return "\n".join(["```mermaid", "stateDiagram-v2", *(f"    {line}" for line in lines), "```"])


def _states(meanings: Mapping[StateT, str]) -> str:
    rows = [f"| `{state.value}` | {meaning} |" for state, meaning in meanings.items()]
    return "\n".join(["| state | what it means |", "|---|---|", *rows])


def _edges(edges: Mapping[tuple[StateT, StateT], str]) -> str:
    rows = [f"| `{old.value}` | `{new.value}` | {cause} |" for (old, new), cause in edges.items()]
    return "\n".join(["| from | to | what is observed |", "|---|---|---|", *rows])


def _what_follows(reason: EndReason) -> str:
    if reason is EndReason.COMPLETED:
        return "the job succeeded"
    if reason in (EndReason.CANCELLED, EndReason.STOPPED_EARLY):
        return "the job is cancelled"
    if reason.is_final or reason is EndReason.START_FAILED:
        return "the job failed"
    if reason is EndReason.EXIT_CODE:
        return "another attempt while `retry` allows it, else the job failed"
    if reason is EndReason.PAUSED:
        return "the job is paused; another attempt when it is resumed"
    if reason.is_users:
        return "another attempt while `retry.limit` allows it, else the job failed"
    return "another attempt; does not count as a retry"


def _end_reasons() -> str:
    rows = [f"| `{reason.value}` | {cause} | {_what_follows(reason)} |" for reason, cause in _REASONS.items()]
    return "\n".join(["| end reason | cause | what follows |", "|---|---|---|", *rows])


def page() -> str:
    """The whole page."""
    sections = [
        "# States",
        "This page is made by `python -m tests.architecture.states_page`; a test compares it with the code.\n"
        "`service/queue/lifecycle/` is the only place where a state changes, and every change leaves an event.",
        "## Job",
        mermaid(JOB_EDGES, JobState.QUEUED),
        _states(_JOBS),
        _edges(JOB_EDGES),
        "While a job is `queued`, `reason` is `waiting_for_nodes`, `waiting_for_turn`, `waiting_for_quota`,\n"
        "`waiting_for_jobs`, `waiting_for_array` or `waiting_for_retry`; while it has an attempt, it is\n"
        f"`{PREPARING}` while its environment is being built, and `regrouping` when none work and a new worker\n"
        f"group is being gathered; while it is `paused`, it is `{PAUSED_BY_OWNER}` or `{WAITING_FOR_BUDGET}`;\n"
        f"at the end it is the last attempt's end reason, `{NO_PROGRESS}`, `wait_time_exceeded` or\n"
        f"`{DEPENDENCY_UNMET}`.",
        "## Attempt",
        mermaid(ATTEMPT_EDGES, AttemptState.STARTING),
        _states(_ATTEMPTS),
        _edges(ATTEMPT_EDGES),
        "## Attempt, in its driver",
        "What the driver of an attempt does while the attempt is `starting`, `running` or `draining`. It is in the\n"
        "memory of the driver only; `trainers/driver/phases.py` is the only place where it changes.",
        mermaid(PHASE_EDGES, Phase.FORMING),
        _states(MEANINGS),
        _edges(PHASE_EDGES),
        "## Change in place, in its driver",
        "What a change of the worker group in place waits for, while the phase of the attempt is `parking`, `waiting`\n"
        "or `joining`; `trainers/driver/change.py` is the only place where it changes. After a loss it begins with\n"
        "`parting`.",
        mermaid(CHANGE_EDGES, ChangeState.AGREED, ChangeState.PARTING),
        _states(CHANGE_MEANINGS),
        _edges(CHANGE_EDGES),
        "## End reasons",
        _end_reasons(),
        "A job that its owner cancelled gets no further attempt, whatever ended the last one. An attempt that was "
        "asked to stop\nends for that reason, however its processes died of it; one that completed all the same has "
        "completed.",
        f"After a failure of the job's own code the next attempt waits `retry.backoff`, doubled each time, at most "
        f"{USER_BACKOFF_CAP_S:g} s.\nAfter a loss it waits {LOSS_BACKOFF_S:g} s, doubled with each loss since the last "
        f"new step, at most {LOSS_BACKOFF_CAP_S:g} s. A job that was\nlost {LOSS_LIMIT} times is given up with the "
        "next loss.",
        f"A job of which {FRUITLESS_LIMIT} attempts in a row ended with `{EndReason.SUPERVISOR_LOST.value}` or "
        f"`{EndReason.DRIVER_LOST.value}`, and made neither a\nnew highest step nor a newer checkpoint, fails with "
        f"`{NO_PROGRESS}`: its nodes lived, so that its own command may be\nwhat ends it each time. For a command that "
        "reports no steps, stored outputs are progress. Other ends between them,\nas of lost nodes, neither count nor "
        "begin the row again; nor do drivers that were lost before they had workers.",
        "## Node",
        mermaid(NODE_EDGES, NodeState.REQUESTED),
        _states(_NODES),
        _edges(NODE_EDGES),
    ]
    return "\n\n".join(sections) + "\n"


if __name__ == "__main__":
    print(page(), end="")
