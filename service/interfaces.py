"""The interfaces that the loops call, as protocols; the docstrings are their contracts.

`trainers.launch`, `cluster.ray.membership` and the tests' fakes implement them structurally.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from cluster.policies.offerings import Offering
from cluster.ray.heartbeats import AgentStatus
from cluster.scheduling.ray_programs import RayDemand
from remora.spec.worker_sizes import WorkerSizes
from remora.states import EndReason
from trainers.plan import AttemptPlan, BuildAhead, DriverGone, ProfileRequest, Record
from trainers.preflight.answers import LinkAnswer, OwnAnswer
from trainers.shells import ShellAnswer, ShellTurn


class Launcher(Protocol):
    """Starts, polls and ends the drivers of attempts.

    Every method may raise when the cluster cannot be reached; the loops ask again at the next tick.
    """

    def start(self, plan: AttemptPlan, secrets: Sequence[bytes] = ()) -> bool | DriverGone:
        """Start the driver, and return whether it has the plan; does not wait, so it is called until it returns True.

        `secrets` are the values of the plan's secrets in chunks (`trainers.secret_values`); they are stored nowhere.
        Idempotent by `plan.attempt_id`, also from several controllers: at most one driver of an attempt ever has a
        plan.  `DriverGone` says that this attempt will have no driver.
        """
        ...

    def prepare(self, token: int) -> None:
        """Prepare the next starts, so that they are faster; called at every tick under the lease with that token."""
        ...

    def build_ahead(self, wanted: Sequence[BuildAhead]) -> None:
        """Have nodes build the environments of these waiting jobs, next one first, and no others; does not wait.

        Called at every tick.  A build that fails is not tried again, as the attempt of the job says why.
        """
        ...

    def poll(
        self, attempt_ids: list[str], after: dict[str, int]
    ) -> Mapping[str, Sequence[Record] | DriverGone]:
        """The records of each driver after record `after[attempt_id]`, or that the driver is dead.

        A poll acknowledges: a driver may forget everything up to `after[attempt_id]`.  A driver that does not answer
        in time is left out; one that has no plan is gone.
        """
        ...

    def keep(self, attempt_id: str, nodes: Mapping[str, str], token: int) -> bool:
        """Send the driver for which job nodes are kept, by node id: groups of other jobs do not grow onto them.

        Called at every tick, and does not wait: changes are sent again until the driver has accepted them.  `token` is
        that of the lease: the call of a later controller counts, in whatever order calls arrive.  True: accepted.
        """
        ...

    def resize(self, attempt_id: str, sizes: WorkerSizes, order: float) -> bool:
        """Let the worker group have these sizes; called at every tick until it is True, and does not wait.

        Of two calls the one with the later `order` counts, whenever they arrive.
        """
        ...

    def request_stacks(self, attempt_id: str, order: float) -> bool:
        """Have the driver report what each rank is doing; called at every tick until it is True, and does not wait.

        The same `order` twice is one request.
        """
        ...

    def request_profile(self, attempt_id: str, request: ProfileRequest) -> bool:
        """Have the driver profile a rank; called at every tick until it is True, and does not wait.

        Two requests of the same number are one.
        """
        ...

    def stop(self, attempt_id: str, reason: EndReason) -> None:
        """Ask the driver to end the attempt; called until it reports an `ended` record."""
        ...

    def kill(self, attempt_id: str) -> bool:
        """Make sure that nothing of the attempt runs.  Idempotent; called until it returns True."""
        ...

    def attempts(self) -> Sequence[str]:
        """Ids of all attempts that have a driver, now and then; none at other times.  Called at every tick."""
        ...

    def stored_end(
        self, attempt_id: str, *, job_id: str, storage_url: str, after: int
    ) -> Sequence[Record] | None:
        """The records after number `after`, with the end, that a driver which is gone stored before it reported them.

        Does not wait; called until it is not None.  Empty: it has stored none.
        """
        ...

    def close(self, attempt_id: str, *, job_id: str, storage_url: str) -> bool:
        """Make sure that no driver begins the attempt any more; called until it returns True."""
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
        """Ray has assigned some of its resources, also to workers that no driver has reported yet."""
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
        """The newest heartbeat of its agent; None where it never sent one."""
        ...


class Membership(Protocol):
    """Knows which of our nodes are members of the Ray cluster."""

    def observe(self) -> Mapping[str, Member]:
        """All of our nodes that Ray knows, by node id.  Raises when it is not sure."""
        ...


class RayPrograms(Protocol):
    """Knows what Ray programs that are no jobs ask for, and what they hold."""

    def observe(self) -> RayDemand:
        """What they ask for and hold now, by our node ids.  Raises when it is not sure."""
        ...


class Supply(Protocol):
    """Offerings and quotas; all methods return at once, from data that was fetched before."""

    def offerings(self) -> tuple[Offering, ...]:
        """Everything that is sold here."""
        ...

    def quota_left(self) -> Mapping[str, int]:
        """Units that may still be used of each quota, by its name in lower case; others are not limited."""
        ...

    def quota_limits(self) -> Mapping[str, int]:
        """Units of each quota, used or not, by its name in lower case; empty while they are not known."""
        ...


class Drains(Protocol):
    """Has Ray give nodes no more work."""

    def drain(self, node_id: str, reason: str, deadline_at: float) -> None:
        """Drain a node of ours until `deadline_at`, seconds since 1970.  May be repeated; raises with a sentence."""
        ...


class Preflights(Protocol):
    """Has nodes measured.  No method waits for a node.

    All may raise when Ray cannot be reached, and are called again then.
    What was asked for ends with this process: the next controller asks again.
    """

    def measure(self, node_ids: Collection[str], limit_s: float) -> None:
        """Have nodes measure themselves for at most `limit_s` seconds, unless they do already."""
        ...

    def link(self, backends: Mapping[tuple[str, str], str], limit_s: float) -> Collection[tuple[str, str]]:
        """Have pairs of nodes measure what joins them, over `gloo` or `nccl`, unless they do already; which do now.

        The others are pairs of which Ray does not know both nodes: for these no answer comes.
        """
        ...

    def answers(self) -> Sequence[OwnAnswer | LinkAnswer]:
        """What has ended since the last call."""
        ...

    def keep_only(self, node_ids: Collection[str]) -> None:
        """End what was asked of other nodes."""
        ...


class ShellTransport(Protocol):
    """Reaches the shells of attempts."""

    def exchange(
        self, order: tuple[int, int], states: Mapping[str, Sequence[ShellTurn]]
    ) -> Mapping[str, Sequence[ShellAnswer]]:
        """Send each driver, by the id of its attempt, all shells that it has, and return what drivers have answered.

        Waits a small part of a second for that.  Of two calls the one with the later `order` counts.  A driver that
        cannot be reached is left out.
        """
        ...


class Rehearsal(Protocol):
    """Takes nodes away as a cloud does.  Both calls may be repeated, and raise with a sentence when they cannot."""

    @property
    def own_notice_s(self) -> float | None:
        """Seconds of notice where the cloud gives its own, some time after `notify`, and then takes the node itself.

        None: a notice is as long as requested, and `take` ends the node.
        """
        ...

    def notify(self, node_id: str, deadline_at: float) -> None:
        """Notify a node that it will be gone at `deadline_at`, seconds since 1970."""
        ...

    def take(self, node_id: str) -> None:
        """End a node at once, with all that runs on it."""
        ...
