"""The local provider: every node is a real raylet in a session of its own, with a loopback address of its own.

A node outlives the process that created it.  Its record is `<home>/nodes/<node_id>.json`, so a controller
that starts again finds every node and never mistakes a recycled pid for one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster.local import machine, records
from cluster.local.addresses import node_address
from cluster.local.environment import MACHINE_VARIABLE
from cluster.local.faults import LocalFault, take_fault
from cluster.local.folders import ClusterFolders
from cluster.local.records import MachineRecord
from cluster.processes import find_by_environment
from cluster.provider import InsufficientCapacity, NodeRequest, ProvidedNode, ProviderError, check_node_id
from cluster.ray.joining import join_flags

#: Seconds for which a refusal is valid.
REFUSED_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Boot:
    """The first process of a machine that is no plain node."""

    command: Sequence[str]
    #: Added to its environment.
    variables: dict[str, str]


class LocalProvider:
    """`cluster.provider.Provider` whose machines are processes of this host."""

    def __init__(self, home: Path, ray_address: str, clock: Callable[[], float] = time.time) -> None:
        """Nodes are recorded in `home` and join the head at `ray_address` (`host:port`).

        A machine that belongs to another head is listed as one that does not run: its cluster is gone.  `clock` says
        the time of refusals, in seconds since 1970.
        """
        self._folders = ClusterFolders(home.resolve())
        self._ray_address = ray_address
        self._clock = clock

    def create(self, request: NodeRequest) -> None:
        """Start a node and return without waiting until it has joined.

        Raises InvalidRequest for what can never be started, InsufficientCapacity when all addresses are taken, and
        ProviderError when the process cannot be started; then there is no node.  What `faults.json` of the home says
        goes wrong.
        """
        flags = join_flags(request, self._ray_address)

        def start(planned: MachineRecord, record: Path, log: Path) -> None:
            fault, faults = take_fault(self._folders.faults)
            if fault is LocalFault.REFUSE:
                raise InsufficientCapacity(
                    "this host has no capacity for it, as a rehearsal wants it",
                    offering=request.offering or request.pool,
                    until=self._clock() + REFUSED_S,
                )
            machine.start(self._folders.home, planned, record, log, flags, fault, faults.late_s)

        self._make(request.node_id, request.pool, start)

    def boot(self, machine_id: str, prepare: Callable[[MachineRecord], Boot]) -> None:
        """Start a machine whose first process is of any kind, such as the service of an image; idempotent by its id.

        Everything else of this class holds for it as for a node.  `prepare` is called once its address and its
        temporary folder are known.  What the machine joins, and with which secret, it has to find out by itself.
        Raises what `create` raises, and what `prepare` does.
        """

        def start(planned: MachineRecord, record: Path, log: Path) -> None:
            first = prepare(planned)
            machine.boot(planned, record, log, first.command, **first.variables)

        self._make(machine_id, "", start)

    def _make(self, machine_id: str, pool: str, start: Callable[[MachineRecord, Path, Path], None]) -> None:
        record = self._record(machine_id)
        self._make_folders()
        with records.locked(self._folders.lock):
            if record.exists():
                return
            # Again, with the lock held: the deletion of the last machine removes the temporary folder.
            self._make_folders()
            taken = {node.address for node in self._read_all()}
            address = node_address(self._folders.home, taken)
            if address is None:
                raise InsufficientCapacity(
                    "this host has no loopback address left; delete nodes first",
                    offering=pool,
                    until=self._clock() + REFUSED_S,
                )
            planned = MachineRecord(
                id=machine_id,
                mark=self._folders.mark_of(machine_id),
                pool=pool,
                address=address,
                ray_address=self._ray_address,
                created_at=time.time(),
                temporary=str(self._folders.temporary_of(machine_id)),
                cgroup=_text(self._folders.cgroup_of(machine_id)),
            )
            start(planned, record, self.log(machine_id))

    def list(self) -> list[ProvidedNode]:
        """Every node that was created and not deleted, in order of creation; dead ones say why they died.

        Raises ProviderError when a record cannot be read.
        """
        machine.reap()
        nodes = self._read_all()
        if any(node.pid is None for node in nodes):
            with records.locked(self._folders.lock):
                nodes = tuple(self._completed(node) for node in self._read_all())
        return [self._seen(node) for node in sorted(nodes, key=lambda node: (node.created_at, node.id))]

    def delete(self, node_id: str) -> None:
        """End the node in any state, with a grace of some seconds, and forget it."""
        self._end(node_id, machine.STOP_GRACE_S)
        if self._folders.home.exists():
            with records.locked(self._folders.lock):
                # No process can be starting it now; what was started since the first look is ended too.
                self._end(node_id, 0.0)
                self._record(node_id).unlink(missing_ok=True)
                self._folders.remove_temporary_if_empty()

    def kill(self, node_id: str) -> None:
        """Take the node away at once, like a host that loses power: it stays listed, as one that does not run."""
        self._end(node_id, 0.0)

    def freeze(self, node_id: str) -> None:
        """Let every process of the node hang until `thaw`; it stays listed as running."""
        machine.freeze(self._folders.mark_of(node_id))

    def thaw(self, node_id: str) -> None:
        """Let a frozen node go on."""
        machine.thaw(self._folders.mark_of(node_id))

    def node_ids(self) -> tuple[str, ...]:
        """Names of all nodes that have a record, readable or not; for those who only want to delete them."""
        return tuple(sorted(path.stem for path in self._folders.nodes.glob("*.json")))

    def processes(self, node_id: str) -> tuple[psutil.Process, ...]:
        """All living processes of the node, also those of the user's commands; not the reaper above its first one."""
        found = find_by_environment(MACHINE_VARIABLE, self._folders.mark_of(node_id))
        parents = machine.parents_of(found)
        return tuple(one for one in found if one.pid not in parents or not machine.is_reaper(one))

    def log(self, node_id: str) -> Path:
        """Where the node's first process writes, and what it starts."""
        return self._folders.nodes / f"{node_id}.log"

    def _record(self, node_id: str) -> Path:
        check_node_id(node_id)
        return self._folders.nodes / f"{node_id}.json"

    def _make_folders(self) -> None:
        try:
            self._folders.make()
        except OSError as error:
            raise ProviderError(f"the folders of the cluster cannot be made: {error}") from error

    def _read_all(self) -> tuple[MachineRecord, ...]:
        try:
            paths = [
                path
                for path in self._folders.nodes.iterdir()
                if path.suffix == ".json" and path.name[0] != "."
            ]
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise ProviderError(f"the node records cannot be listed: {error}") from error
        # A record that disappears in between belongs to a node that was deleted.
        return tuple(node for path in paths if (node := records.read(path)) is not None)

    def _completed(self, node: MachineRecord) -> MachineRecord:
        """A node whose maker died between starting it and writing its pid down."""
        if node.pid is not None:
            return node
        found = node.find_process()
        if found.pid is not None:
            records.write(self._record(node.id), found)
        return found

    def _seen(self, node: MachineRecord) -> ProvidedNode:
        runs = node.is_running and node.ray_address == self._ray_address
        return ProvidedNode(
            node_id=node.id,
            pool=node.pool,
            is_running=runs,
            address=node.address,
            created_at=node.created_at,
            message=None if runs else self._why_not(node),
        )

    def _why_not(self, node: MachineRecord) -> str:
        if node.pid is None:
            return "its process was never started"
        if node.is_running:
            return f"its head {node.ray_address} is gone"
        return f"its process ended: {machine.complaint(self.log(node.id))}"

    def _end(self, node_id: str, grace_s: float) -> None:
        record = self._record(node_id)
        try:
            node = records.read(record)
        except ProviderError:
            # Even without a readable record its processes carry its name.
            node = None
        temporary = Path(node.temporary) if node else self._folders.temporary_of(node_id)
        cgroup = self._folders.cgroup_of(node_id)
        machine.end(self._folders.mark_of(node_id), temporary, grace_s, node, cgroup)


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
