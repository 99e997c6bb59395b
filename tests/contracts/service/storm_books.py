"""What stands in the books of the service and of the cloud: what holds at every moment, and what people read later."""

from __future__ import annotations

from collections import Counter, defaultdict
from functools import partial
from typing import TYPE_CHECKING

from cluster.scheduling.view import ENDED
from remora.clusters import DEFAULT_CLUSTER
from remora.states import JobState, NodeState
from remora.views import Event, NodeEvent
from service.queue.rows import JobRow, NodeRow
from service.store import job_history, jobs, ledger, nodes
from tests.contracts.service.storm_cloud import is_neighbour_well, is_nothing_left, machines_of, node_of

if TYPE_CHECKING:
    from tests.contracts.service.azure_storm import Storm

#: Rows that count against the maximum of their pool: what drains or goes may be replaced already, see decision 0055.
COUNTED = (NodeState.REQUESTED, NodeState.LAUNCHED, NodeState.JOINED, NodeState.READY)
#: Of a machine that the cloud took these rows know that it worked, or was to.
TAKEN = (NodeState.LAUNCHED, NodeState.JOINED, NodeState.READY, NodeState.DRAINING)


class Books:
    """Reads and checks the books of one storm."""

    def __init__(self, storm: Storm) -> None:
        self._storm = storm
        #: Nodes that there may be: more than the maximum as long as those above it are not drained yet.
        self._most = 0
        #: When a node that worked got notice, and nodes that the cloud took.
        self.noticed: dict[str, float] = {}
        self.evicted: set[str] = set()
        #: Nodes that no controller requested, and whose machines have to go.
        self.strays: set[str] = set()

    def rows(self) -> list[NodeRow]:
        """All nodes that there ever were."""
        return self._storm.database.query(lambda connection: nodes.current_nodes(connection, "default", 0.0))

    def counted(self) -> list[NodeRow]:
        """Those that count against the maximum of their pool."""
        return [row for row in self.rows() if row.state in COUNTED]

    def living(self) -> list[NodeRow]:
        """Those that have not ended."""
        return [row for row in self.rows() if row.state not in ENDED]

    def requested(self) -> list[str]:
        """Nodes whose machines no answer has said to have been made."""
        return [row.id for row in self.rows() if row.state is NodeState.REQUESTED]

    def not_joined(self) -> list[str]:
        """Nodes whose machines were asked for and are no members yet."""
        return [row.id for row in self.rows() if row.state in (NodeState.REQUESTED, NodeState.LAUNCHED)]

    def job(self, job_id: str) -> JobRow:
        row = self._storm.database.query(lambda connection: jobs.get_job(connection, job_id))
        assert row is not None
        return row

    def all_jobs(self) -> list[JobRow]:
        return [self.job(job_id) for job_id in self._storm.job_drivers.length]

    def workers(self) -> int:
        """Workers of all jobs, by their drivers' account."""
        return sum(job.world_size for job in self.all_jobs())

    def why_short(self) -> list[str]:
        """What the owners read about jobs that have fewer workers than they can use."""
        short = [
            job for job in self.all_jobs() if not job.state.is_terminal and job.world_size < job.max_workers
        ]
        return [str(job.why_short if job.state is JobState.RUNNING else job.message) for job in short]

    def events(self, job_id: str) -> list[Event]:
        return self._storm.database.query(lambda c: job_history.page_of_events(c, job_id, 0, 10_000))

    def node_events(self, node_id: str) -> list[NodeEvent]:
        return self._storm.database.query(lambda c: nodes.page_of_node_events(c, node_id, 0, 10_000))

    def is_quiet(self) -> bool:
        """All jobs are over, all nodes are returned, and nothing is left of them."""
        over = all(job.state.is_terminal for job in self.all_jobs())
        return over and not self.living() and is_nothing_left(self._storm.rig)

    def check(self) -> None:
        """What holds at every moment."""
        storm = self._storm
        storm.witness.check()
        rows = {row.id: row for row in self.rows()}
        names = Counter(name for one in machines_of(storm.rig) if (name := node_of(one)) not in self.strays)
        assert names.keys() <= rows.keys(), "a machine without a row"
        assert max(names.values(), default=0) <= 1, "a node has two machines"
        given_up = {name for name in names if "its machine is gone" in str(rows[name].message)}
        assert not given_up, "a machine is there that is said to be gone"
        counted = sum(row.state in COUNTED for row in rows.values())
        assert counted <= self._most, "more nodes than the pool may have"
        self._most = max(storm.max_nodes, counted)
        for name, (used, limit) in storm.rig.cloud.usages().items():
            assert used <= limit, f"more of the quota {name} than there is"
        parts: defaultdict[str, float] = defaultdict(float)
        for use in storm.database.query(partial(ledger.open_uses, cluster=DEFAULT_CLUSTER)):
            parts[use.node_id] += use.part
        assert all(part <= 1.0 + 1e-9 for part in parts.values()), "a node is paid for twice"
        assert storm.cost - storm.excused <= storm.usd, "more is spent than there is"

    def allow(self, max_nodes: int) -> None:
        """That number of nodes is requested from now on; those above it need not have gone at once."""
        self._most = max(max_nodes, len(self.counted()))

    def check_cleared(self) -> None:
        """No machine is left of a node that has ended, or that never was."""
        gone = self.strays | {row.id for row in self.rows() if row.state in ENDED}
        left = gone & {node_of(one) for one in machines_of(self._storm.rig)}
        assert not left, f"machines of nodes that have ended, or never were: {sorted(left)}"

    def check_words(self) -> None:
        """What happened stands in the events of nodes and jobs, in sentences; others have what is theirs."""
        assert is_neighbour_well(self._storm.rig), "what belongs to another cluster is gone"
        for name in self.evicted:
            said = [event.message for event in self.node_events(name) if event.kind == "node.terminating"]
            assert len(said) == 1
            assert "its machine is gone" in said[0], f"{name}: {said[0]}"
        for name, at in self.noticed.items():
            events = self.node_events(name)
            reported = any("the cloud takes the machine back" in event.message for event in events)
            until = at + self._storm.rig.cloud.notice_s + 15.0
            went = any(e.kind == "node.terminating" and e.at <= until for e in events)
            assert reported or went
        for name, refusal in self._storm.witness.refused.items():
            assert refusal in {event.message for event in self.node_events(name)}
        for row in self.rows():
            assert "left the Ray cluster" not in str(row.message), "a living member was given up"
            events = self.node_events(row.id)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert all(len(event.message.split()) > 2 for event in events)
            assert [e.kind for e in events if e.kind in ("node.gone", "node.failed")] == [events[-1].kind]
        for job in self.all_jobs():
            self._check_words_of(job)

    def _check_words_of(self, job: JobRow) -> None:
        events = self.events(job.id)
        assert all(len(event.message.split()) >= 2 for event in events)
        lost = [e for e in events if e.kind == "attempt.ended" and e.data["end_reason"] == "node_lost"]
        again = [e for e in events if e.kind == "job.queued" and e.data.get("reason") == "node_lost"]
        paused = [e for e in events if e.kind == "job.paused" and e.data.get("end_reason") == "node_lost"]
        assert len(again) + len(paused) == len(lost) == job.losses
        assert all("another attempt follows" in event.message for event in again)
        attempts = self._storm.database.query(lambda connection: jobs.job_attempts(connection, job.id))
        steps = [one.resumed_from_step for one in attempts if one.resumed_from_step is not None]
        assert steps == sorted(steps), "a job began before its checkpoint"
