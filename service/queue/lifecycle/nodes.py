"""Nodes from their request to their end (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cluster.ray.heartbeats import AgentStatus
from cluster.scheduling.formatting import clock
from cluster.scheduling.health import DRAIN_S
from cluster.scheduling.view import JOINED
from remora.states import NodeState
from service.queue.lifecycle.decisions import NodeDecision
from service.queue.lifecycle.edges import NODE_EDGES, checked
from service.queue.rows import NewEvent, NodeRow


def request_node(node: NodeRow) -> NodeDecision:
    """A node is requested; its row exists before the provider is asked."""
    event = NewEvent(at=node.created_at, kind="node.requested", message=node.message or "it was requested")
    return NodeDecision(node, (event,))


def delay_node(node: NodeRow, why: str, now: float, *, was_asked: bool) -> NodeDecision:
    """The node is asked for again: the provider could not be asked now, or `was_asked` and gave no clear answer."""
    if was_asked:
        since = now if node.unanswered_since is None else node.unanswered_since
        node = replace(node, unanswered_since=since, unanswered=node.unanswered + 1)
    message = f"it is asked for again: {why}"
    if node.message == message:
        return NodeDecision(node)
    event = NewEvent(at=now, kind="node.delayed", message=message)
    return NodeDecision(replace(node, message=message), (event,))


def move_node(node: NodeRow, state: NodeState, message: str, now: float) -> NodeDecision:
    """A node goes on to another state because of what `message` says."""
    moved = replace(node, state=checked(NODE_EDGES, node.state, state), message=message)
    if state is NodeState.LAUNCHED:
        moved = replace(moved, launched_at=now)
    if state is NodeState.READY:
        moved = replace(moved, ready_at=now, message=None)
    if state is NodeState.DRAINING:
        moved = replace(moved, leaving_since=now)
    event = NewEvent(at=now, kind=f"node.{state.value}", message=message)
    return NodeDecision(moved, (event,))


def terminate_node(
    node: NodeRow, message: str, is_failure: bool, now: float, *, is_cut_off: bool = False
) -> NodeDecision:
    """The node has to go.

    `is_failure` says that it ended before it was of any use, `is_cut_off` that Ray lost it while its machine ran.
    """
    decision = move_node(node, NodeState.TERMINATING, message, now)
    since = now if node.leaving_since is None else node.leaving_since
    ended = replace(decision.node, is_failure=is_failure, is_cut_off=is_cut_off, leaving_since=since)
    return replace(decision, node=ended)


def drain_node(node: NodeRow, message: str, deadline_at: float, now: float) -> NodeDecision:
    """The node takes no more work and goes at `deadline_at`, in seconds since 1970."""
    until = f"{message}; what works on it has until {clock(deadline_at)}"
    decision = move_node(node, NodeState.DRAINING, until, now)
    return replace(decision, node=replace(decision.node, deadline_at=deadline_at))


def sicken_node(node: NodeRow, message: str, now: float) -> NodeDecision | None:
    """A node that computes wrongly is drained; None where it leaves anyway and is known to be sick, or has left."""
    if node.state not in JOINED or node.sick_since is not None:
        return None
    if node.state is NodeState.DRAINING:
        # What drains it has said until when.
        event = NewEvent(at=now, kind="node.sick", message=f"this machine is sick: {message}")
        return NodeDecision(replace(node, sick_since=now), (event,))
    decision = drain_node(node, f"this machine is sick: {message}", now + DRAIN_S, now)
    return replace(decision, node=replace(decision.node, sick_since=now))


def price_node(node: NodeRow, price_per_hour: float, now: float) -> NodeDecision:
    """The cloud's price was read, in USD for an hour: all of the node's time is paid at it."""
    message = f"its price was read: {price_per_hour:.4f} USD an hour; {node.price_per_hour:.4f} USD had been assumed"
    priced = replace(node, price_per_hour=price_per_hour, is_price_assumed=False)
    return NodeDecision(priced, (NewEvent(at=now, kind="node.priced", message=message),))


def begin_preflight(node: NodeRow, now: float) -> NodeDecision:
    """A node that has joined is measured from now on, also when an earlier controller had begun with that."""
    begun = replace(node, preflight_since=now, message="it is measured before it gets work")
    return NodeDecision(begun)


def pass_preflight(node: NodeRow, result: Mapping[str, Any], message: str, now: float) -> NodeDecision:
    """A node that was measured is ready; `message` says what was found."""
    passed = NewEvent(at=now, kind="node.preflight_passed", message=message)
    ready = move_node(replace(node, preflight=dict(result)), NodeState.READY, "it may be given work", now)
    return NodeDecision(ready.node, (passed, *ready.events))


def fail_preflight(node: NodeRow, result: Mapping[str, Any], message: str, now: float) -> NodeDecision | None:
    """A node that must not get work is drained as one that is sick; None where it leaves anyway."""
    if node.state is not NodeState.JOINED:
        return None
    drained = sicken_node(replace(node, preflight=dict(result)), f"it failed its preflight: {message}", now)
    if drained is None:
        return None
    failed = NewEvent(at=now, kind="node.preflight_failed", message=message)
    return NodeDecision(drained.node, (failed, *drained.events))


def end_node(node: NodeRow, now: float) -> NodeDecision:
    """The provider no longer lists the node; its message goes on saying why it went."""
    state = NodeState.FAILED if node.is_failure else NodeState.GONE
    decision = move_node(node, state, node.message or "the provider no longer lists it", now)
    return replace(decision, node=replace(decision.node, ended_at=now))


@dataclass(frozen=True, kw_only=True)
class NodeObservation:
    """What the provider and Ray say about a node."""

    #: The provider lists it.
    is_provided: bool
    #: Ray knows it and calls it alive.
    is_alive: bool = False
    #: Ray gives it no new work.
    is_draining: bool = False
    #: While draining: when it has to be gone, where Ray says so.
    deadline_at: float | None = None
    #: Why it drains or has left, where its agent says so.
    leaves: str | None = None
    #: The newest heartbeat of its agent; None where it never sent one.
    agent: AgentStatus | None = None
    address: str | None = None
    resources: Mapping[str, float] = field(default_factory=dict)
    #: Nodes are measured before they get work, so that not its membership makes it ready.
    needs_preflight: bool = False


def observe_node(node: NodeRow, observed: NodeObservation, now: float) -> NodeDecision:
    """The node moves to the states that the observation shows; that it has to go is the planner's decision."""
    decision = NodeDecision(node)
    while (following := _observe_once(decision.node, observed, now)) is not None:
        decision = NodeDecision(following.node, decision.events + following.events)
    is_sick = observed.agent is not None and observed.agent.heartbeat.is_sick
    if is_sick and decision.node.sick_since is None and decision.node.state in JOINED:
        # Its agent drains it for that, and reports why.
        decision = replace(decision, node=replace(decision.node, sick_since=now))
    return decision


def _observe_once(node: NodeRow, observed: NodeObservation, now: float) -> NodeDecision | None:
    match node.state:
        case NodeState.REQUESTED if observed.is_provided:
            return move_node(node, NodeState.LAUNCHED, "its machine starts", now)
        case NodeState.LAUNCHED if observed.is_alive:
            joined = replace(
                node, address=observed.address, resources=dict(observed.resources) or node.resources
            )
            return move_node(joined, NodeState.JOINED, "it joined the Ray cluster", now)
        case NodeState.JOINED | NodeState.READY if observed.is_alive and observed.is_draining:
            why = f"{observed.leaves}: it" if observed.leaves else "it"
            until = (
                ""
                if observed.deadline_at is None
                else f", and what works on it has until {clock(observed.deadline_at)}"
            )
            says = f"{why} is being drained and takes no new work{until}"
            return move_node(node, NodeState.DRAINING, says, now)
        case NodeState.JOINED | NodeState.READY if observed.leaves and not observed.is_alive:
            # A drain ends as soon as nothing runs on the node, which may be before anybody has looked.
            why = f"{observed.leaves}: it was drained and has left the Ray cluster"
            return move_node(node, NodeState.DRAINING, why, now)
        case NodeState.JOINED if observed.is_alive and not observed.needs_preflight:
            return move_node(node, NodeState.READY, "it may be given work", now)
        case NodeState.READY if observed.is_alive and observed.agent is not None:
            return _observe_agent(node, observed.agent, now)
        case NodeState.DRAINING if (
            node.deadline_at is None and (due_at := _drained_until(observed, now)) is not None
        ):
            return NodeDecision(replace(node, deadline_at=due_at))
        case NodeState.TERMINATING if not observed.is_provided:
            return end_node(node, now)
    return None


def _drained_until(observed: NodeObservation, now: float) -> float | None:
    """When a node that others drained has to be gone; None: Ray drains it for as long as something runs on it.

    It is stored, because Ray may forget the drain, as of a raylet that was started again: then the drain is sent again.
    """
    if observed.is_alive and not observed.is_draining:
        return now + DRAIN_S
    return observed.deadline_at


def _observe_agent(node: NodeRow, agent: AgentStatus, now: float) -> NodeDecision | None:
    """An agent that falls silent, gets no answers from its cloud, or recovers makes one event; so does what it reports.

    It is no reason to drain or to end the node: the machine works, and only the notice of its end is lost, which would
    cost the work less than leaving the machine for nothing.
    """
    if node.agent_silent_since is None and (agent.is_silent or agent.is_unanswered):
        message = (
            f"its agent has said nothing since {clock(now - agent.unchanged_s)}: the node goes on working, but"
            " a notice of its cloud or a sick GPU may not be heard of"
            if agent.is_silent
            else f"its agent has had no answer of its cloud since {clock(now - agent.heartbeat.unanswered_s)}: the node"
            " goes on working, but a notice of its cloud may not be heard of"
        )
        silent = replace(node, agent_silent_since=agent.heartbeat.at, message=message)
        return NodeDecision(silent, (NewEvent(at=now, kind="node.agent_silent", message=message),))
    # Compared with the row: a controller that has just started has no heartbeats yet.
    is_new = node.agent_silent_since is not None and agent.heartbeat.at != node.agent_silent_since
    if is_new and not agent.is_silent and not agent.is_unanswered:
        heard = replace(node, agent_silent_since=None, message=None)
        return NodeDecision(
            heard, (NewEvent(at=now, kind="node.agent_heard", message="its agent is heard again"),)
        )
    # A ready node has no other message, so this one says which event was written already, also by another controller.
    if node.agent_silent_since is None and node.message != agent.heartbeat.says:
        reported = replace(node, message=agent.heartbeat.says)
        if agent.heartbeat.says is None:
            return NodeDecision(reported)
        return NodeDecision(
            reported, (NewEvent(at=now, kind="node.agent_said", message=agent.heartbeat.says),)
        )
    return None
