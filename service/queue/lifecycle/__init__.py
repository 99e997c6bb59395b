"""The state machines of jobs, attempts and nodes: the only place where a state changes (pure).

The tables in `edges.py` say which transitions exist and which observation causes each; every function returns the
changed rows with the events of the change, and the store writes both in one transaction.
"""

from service.queue.lifecycle.attempts import (
    PREPARING,
    end_attempt,
    launched,
    listed,
    observe,
    observe_checkpoint,
    observe_outputs,
    observe_step,
    released,
    request_stop,
    start_attempt,
)
from service.queue.lifecycle.decisions import Decision, NodeDecision
from service.queue.lifecycle.edges import ATTEMPT_EDGES, JOB_EDGES, NODE_EDGES, TransitionError
from service.queue.lifecycle.jobs import (
    DEPENDENCY_UNMET,
    end_spent,
    give_up_waiting,
    others_ended,
    release_from_array,
    request_cancel,
    submit,
    tell_short,
    wait,
    why_stopped,
)
from service.queue.lifecycle.nodes import (
    NodeObservation,
    delay_node,
    drain_node,
    end_node,
    move_node,
    observe_node,
    request_node,
    terminate_node,
)
from service.queue.lifecycle.pauses import (
    PAUSED_BY_OWNER,
    WAITING_FOR_BUDGET,
    pause,
    request_pause,
    request_resume,
    resume,
    tell_budget,
    tell_paused,
)

__all__ = [
    "ATTEMPT_EDGES",
    "DEPENDENCY_UNMET",
    "JOB_EDGES",
    "NODE_EDGES",
    "PAUSED_BY_OWNER",
    "PREPARING",
    "WAITING_FOR_BUDGET",
    "Decision",
    "NodeDecision",
    "NodeObservation",
    "TransitionError",
    "delay_node",
    "drain_node",
    "end_attempt",
    "end_node",
    "end_spent",
    "give_up_waiting",
    "launched",
    "listed",
    "move_node",
    "observe",
    "observe_checkpoint",
    "observe_node",
    "observe_outputs",
    "observe_step",
    "others_ended",
    "pause",
    "release_from_array",
    "released",
    "request_cancel",
    "request_node",
    "request_pause",
    "request_resume",
    "request_stop",
    "resume",
    "start_attempt",
    "submit",
    "tell_budget",
    "tell_paused",
    "tell_short",
    "terminate_node",
    "wait",
    "why_stopped",
]
