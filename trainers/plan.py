"""The plan of an attempt and the records that it produces: frozen values that cross the process boundary as JSON.

`AttemptPlan` goes from the service to the driver; `Record`s come back.  A record's `seq` starts at 1 for every
attempt and has no gaps, so that the service can ask for "everything after seq N", store each record once and
forget the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from remora.isolation import Isolation
from remora.spec.backends import BackendName
from remora.spec.sections import Device, Precision
from remora.spec.worker_sizes import WorkerSizes
from remora.states import EndReason
from trainers.driver_protocol import FIRST
from trainers.environments.request import EnvironmentRequest
from trainers.input_source import InputSource

RecordKind = Literal[
    "event", "log", "metric", "checkpoint", "checkpoints", "output", "profile", "progress", "ended"
]


@dataclass(frozen=True, kw_only=True)
class AttemptPlan:
    """Everything a driver needs to run one attempt."""

    #: That of the service (`trainers.driver_protocol`); a release that knew no number leaves it out.
    protocol: int = FIRST
    job_id: str
    attempt_id: str
    #: 1, 2, ...; also the fencing token: a driver of a lower attempt may not commit a checkpoint any more.
    attempt: int
    #: Argument list; run without a shell.
    command: list[str]
    #: Digest of the code bundle (`sha256:...`), or None for an empty folder.
    bundle: str | None
    #: URL of the storage that holds `bundles/` and `jobs/` (a path or any fsspec URL).
    storage_url: str
    #: URL of the storage for checkpoints when the job names its own; else `storage_url`.
    checkpoint_url: str
    backend: BackendName
    #: The sizes that a worker group may have.
    sizes: WorkerSizes
    #: Ray resources of one worker, e.g. {"CPU": 1.0, "GPU": 1.0, "memory": 1e9}.
    resources: dict[str, float]
    #: Accepted values by label of the worker's Ray node; labels that are not named may have any value.
    labels: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: The most workers on one node; None: as many as fit.
    workers_per_node: int | None = None
    #: Labels, with their values, of nodes that the cloud does not take back; rank 0 is on one when a worker is.
    lasting: dict[str, tuple[str, ...]] = field(default_factory=dict)
    #: Nodes that may have joined and get no worker yet, by our ids, until the service says which ones later.
    closed_nodes: tuple[str, ...] = ()
    #: What the command must find on its node.
    device: Device = "auto"
    #: How exactly its processor multiplies.
    precision: Precision = "full"
    #: The job's Python environment; None: that of the nodes.
    environment: EnvironmentRequest | None = None
    #: The image of a container in which the command runs, as podman names it; None: it runs on the node itself.
    image: str | None = None
    #: What the job reads, by name: `${{inputs.NAME}}` is its path on the node.
    inputs: dict[str, InputSource] = field(default_factory=dict)
    #: Bytes that the process of a mounted input keeps in memory of what was read.
    mount_cache_bytes: int = 256 * 2**20
    #: The user's environment variables.
    variables: dict[str, str] = field(default_factory=dict)
    #: The W3C trace context of the attempt, for spans of its command; None: it is in no trace.
    traceparent: str | None = None
    #: The job's secrets by name, each with the variable that has its value; None: a file alone has it.  Values are
    #: no part of the plan (`trainers.secret_values`).
    secrets: dict[str, str | None] = field(default_factory=dict)
    #: Which version of each is given.
    secret_versions: Mapping[str, int] = field(default_factory=dict)
    #: Our variables with what the job asks of an elastic loop (`REMORA_EXACTNESS`, ...).
    elastic_variables: dict[str, str] = field(default_factory=dict)
    #: Names of the job's outputs: folders that the script finds in its outputs folder.
    outputs: tuple[str, ...] = ()
    #: Folders below the command's working folder that are outputs, with their names.
    output_paths: dict[str, str] = field(default_factory=dict)
    #: Files below the command's working folder that are the only file of an output, with its name.
    output_files: dict[str, str] = field(default_factory=dict)
    #: The file that the script writes last when it saves, by output; only of outputs that name one.
    output_commits: dict[str, str] = field(default_factory=dict)
    #: Seconds between periodic checkpoints that scripts are asked for; None asks only before planned stops.
    checkpoint_interval_s: float | None = 60.0
    #: The interval follows what checkpoints cost and how often workers are lost; it begins with the one above.
    is_interval_auto: bool = False
    #: Seconds between two losses of one worker that are usual for the machines.
    worker_mtbf_s: float = 72_000.0
    #: Bytes per second at which a worker's files are taken to reach the storage, until it was measured.
    write_bytes_per_s: float = 1e8
    #: Committed checkpoints to keep.
    checkpoint_keep: int = 3
    #: Metric whose best checkpoint is kept too; None: age alone decides.
    best_metric: str | None = None
    best_mode: Literal["min", "max"] = "min"
    #: Bytes of log kept per attempt; later lines are counted, not kept.
    log_limit_bytes: int = 64 * 2**20
    #: Bytes of one line; the rest of a longer one is cut.
    log_line_bytes: int = 16 * 2**10
    #: Processes and threads that one worker's command may have, where its node can count them.
    max_processes: int = 16_384
    #: Whether its commands run as a user of their own: `auto` where their node can do that.
    isolation: Isolation = "auto"
    #: The project whose jobs share what they keep on a node, and how many bytes that may be; "" or 0: nothing.
    project: str = ""
    project_cache_bytes: int = 0
    #: Bytes of the files that one worker's command makes in its machine's memory (/dev/shm); 0: half of that memory.
    max_shm_bytes: int = 0
    #: Bytes that the job's files may take of one node's disk; 0: any number.
    max_disk_bytes: int = 0
    #: Bytes of the job's outputs in one version.
    max_output_bytes: int = 2**40
    #: Whose limit that is, for people.
    output_limit: str = "REMORA_MAX_OUTPUT_BYTES"
    #: Newest step that an earlier attempt reported, to count what has to be done again; None before the first.
    previous_step: int | None = None
    #: Modules that every node imports once, so that Python commands are forked from there; none: all are started.
    warm_modules: tuple[str, ...] = ()
    #: Seconds to wait for the smallest possible size after losses before the attempt ends with `node_lost`.
    regroup_s: float = 600.0
    #: Seconds that a step may take in any case; one that also takes ten times the longest of late ends the attempt with
    #: `hang`.
    step_time_s: float = 600.0

    @property
    def prepares(self) -> bool:
        """True when workers fetch something before they begin together: an environment, an image, inputs."""
        return self.environment is not None or self.image is not None or bool(self.inputs)


@dataclass(frozen=True, kw_only=True)
class Record:
    """One entry of an attempt's journal.

    `body` by kind:

    - `event`: `{"kind": "worker_group.started", "message": str, "data": {...}}`
    - `log`: `{"rank": int, "stream": "stdout"|"stderr"|"remora", "text": str}`: one or more lines, newlines between
    - `metric`: `{"step": int, "world_size": int, "values": {name: float | None}}` (from rank 0; None: not finite); of
      attempts with more than 100,000 reports not all
    - `checkpoint`: `{"step", "attempt", "world_size", "size_bytes", "location", "files": {name: bytes},
      "committed_at"}`; also `{"step": int, "deleted": true, "reason": "retention"|"damaged"}` when it is there no more
    - `checkpoints`: `{"checkpoints": [...]}`, each as above: all that the job has at the beginning of the attempt
    - `output`: `{"location", "committed_at", "files": {name: {"size_bytes", "sha256", "stored"}}}`: all outputs now
    - `progress`: any of `{"state": "running"|"draining"|"starting", "world_size": int, "workers": {address: int},
      "step": int, "total_steps": int, "repeated_steps": int, "lost_s": float, "resumed_from_step": int,
      "preparing": str, "environment": str, "global_batch": int}`; `preparing` describes a build, `environment` is its
      digest or the id of an image; `workers` are those of `world_size` by the address under which Ray knows their node;
      `global_batch` is what the workers made of their configuration; counters are totals of the attempt
    - `ended`: `{"end_reason": EndReason value, "message": str, "exit_code": int | None, "open_lost_s": float}`; always
      the last record; the seconds are those of a loss that no new step followed
    """

    seq: int
    at: float
    kind: RecordKind
    body: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """An owner asks for a profile of one rank."""

    #: Of the job's profiles, from 1; a driver takes each once.
    number: int
    rank: int
    steps: int


@dataclass(frozen=True)
class DriverGone:
    """The driver of an attempt died without a record of an end."""

    reason: EndReason
    #: One sentence for people.
    message: str


@dataclass(frozen=True)
class BuildAhead:
    """The environment of a job that waits, and the nodes on which it is built, by our ids."""

    job_id: str
    request: EnvironmentRequest
    #: Digest of the job's code; None: it has none.
    bundle: str | None
    #: URL of the storage with the code.
    storage_url: str
    nodes: tuple[str, ...]
    #: How code of the job that the build runs is kept apart from the node, as in the plan of an attempt.
    isolation: Isolation
    #: Processes and threads that this code may have, as in that plan.
    max_processes: int = 16_384

    @property
    def key(self) -> tuple[EnvironmentRequest, str | None, Isolation]:
        """Equal for jobs that need the same environment for the same code, built in the same way."""
        return self.request, self.bundle, self.isolation
