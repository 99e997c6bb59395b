"""What the loops need from others; an interface is its promises.

`trainers.launch` and `cluster.ray.membership` fulfil these by their shape, the tests' fakes as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from cluster.node.agent.heartbeats import AgentStatus
from cluster.policies.offerings import Offering
from remora.states import EndReason
from trainers.plan import AttemptPlan, DriverGone, Record


class Launcher(Protocol):
    """Starts the drivers of attempts, hears from them, and ends them.

    Every method may raise when the cluster cannot be reached; the loops ask again at the next tick.
    """

    def start(self, plan: AttemptPlan) -> bool | DriverGone:
        """Have the driver started, and say whether it has the plan; waits for nobody, so it is called until it has.

        Idempotent by `plan.attempt_id`, whoever calls: at most one driver of an attempt ever has a plan.  `DriverGone`
        says that this attempt will have no driver.
        """
        ...

    def prepare(self, token: int) -> None:
        """Use a quiet moment to make the next starts faster; called at every tick under the lease with that token."""
        ...

    def poll(
        self, attempt_ids: list[str], after: dict[str, int]
    ) -> Mapping[str, Sequence[Record] | DriverGone]:
        """What each driver has told after record `after[attempt_id]`, or that the driver is dead.

        Asking acknowledges: a driver may forget everything up to `after[attempt_id]`.  A driver that does not answer
        in time is left out; one that has no plan is gone.
        """
        ...

    def keep(self, attempt_id: str, nodes: Mapping[str, str], token: int) -> bool:
        """Let the driver know for which job nodes are kept, by their ids: groups of other jobs do not grow onto them.

        Called at every tick, and waits for nobody: a driver is sent what is news to it until it has taken it.  `token`
        is that of the lease: what a later controller says counts, whatever comes last.  True: it has taken it.
        """
        ...

    def stop(self, attempt_id: str, reason: EndReason) -> None:
        """Ask the driver to end the attempt; called until it tells an `ended` record."""
        ...

    def kill(self, attempt_id: str) -> bool:
        """Make sure that nothing of the attempt runs; fine when nothing does.  Called until it is True."""
        ...

    def close(self, attempt_id: str, *, job_id: str, storage_url: str) -> bool:
        """Make sure that no driver begins the attempt which has not begun it yet; called until it is True."""
        ...


class Member(Protocol):
    """One of our nodes as Ray sees it."""

    @property
    def address(self) -> str:
        """IP address."""
        ...

    @property
    def is_alive(self) -> bool:
        """False once Ray gave it up."""
        ...

    @property
    def is_draining(self) -> bool:
        """It takes no new work."""
        ...

    @property
    def is_in_use(self) -> bool:
        """Ray has given some of its resources away, be it to workers that nobody has told of yet."""
        ...

    @property
    def resources(self) -> Mapping[str, float]:
        """Ray resources that it brings."""
        ...

    @property
    def deadline_at(self) -> float | None:
        """While draining: when it has to be gone, seconds since 1970."""
        ...

    @property
    def leaves(self) -> str | None:
        """While draining, or once it has left: why, where its agent says so."""
        ...

    @property
    def agent(self) -> AgentStatus | None:
        """What is heard of its agent; None where none was ever heard."""
        ...


class Membership(Protocol):
    """Knows which of our nodes are members of the Ray cluster."""

    def observe(self) -> Mapping[str, Member]:
        """All of our nodes that Ray knows, by node id.  Raises when it is not sure."""
        ...


class Supply(Protocol):
    """What nodes can be bought as; all answer at once, from what was asked for before."""

    def offerings(self) -> tuple[Offering, ...]:
        """Everything that is sold here."""
        ...

    def quota_left(self) -> Mapping[str, int]:
        """Units that may still be used of each quota, by its name in lower case; others are not limited."""
        ...

    def quota_limits(self) -> Mapping[str, int]:
        """Units of each quota in all, whoever uses them, by its name in lower case; empty while they are not known."""
        ...


class Drains(Protocol):
    """Tells Ray to give nodes no more work."""

    def drain(self, node_id: str, reason: str, deadline_at: float) -> None:
        """Drain a node of ours until `deadline_at`, seconds since 1970.  May be repeated; raises with a sentence."""
        ...


class Rehearsal(Protocol):
    """Takes nodes away as a cloud does.  Both calls may be repeated, and raise with a sentence when they cannot."""

    @property
    def own_notice_s(self) -> float | None:
        """Seconds of notice where the cloud gives its own, some time after `notify`, and then takes the node itself.

        None: a notice is as long as it is wished for, and `take` ends the node.
        """
        ...

    def notify(self, node_id: str, deadline_at: float) -> None:
        """Tell a node that it will be gone at `deadline_at`, seconds since 1970."""
        ...

    def take(self, node_id: str) -> None:
        """End a node at once, with all that runs on it."""
        ...
