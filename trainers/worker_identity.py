"""Which worker of which job, attempt and worker group a process is: ranks, sizes and the rendezvous address."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class WorkerIdentity:
    """One worker of one worker group."""

    job_id: str
    attempt_id: str
    attempt: int
    #: Number of the worker group within the attempt, from 1.
    generation: int
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    node_rank: int
    num_nodes: int
    master_addr: str
    master_port: int
    #: Address and port of every rank, in their order, for backends that ask for them; each was free on its node.
    peers: tuple[str, ...] = ()
    #: Known to the workers of this worker group alone.
    key: str = field(default="", repr=False)
