"""Supervises one rank's command: starts it, passes its messages on to the driver, and ends with it.

`prepare`, `instruct` and `supervise` run in the process of a Ray Train worker: the first two are called by the driver,
the last one is what Ray Train runs as its training function.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remora.errors import BundleError
from remora.isolation import IsolationImpossible
from remora.script import channel
from remora.spec.expressions import fill
from remora.spec.quantities import format_size
from trainers.backends import backend_of
from trainers.backends.backend import BackendUnusable, LaunchContext
from trainers.checkpoints.catalog import Catalog
from trainers.checkpoints.manifest import Manifest
from trainers.confined_folders import ConfinedFolder
from trainers.environments.build import EnvironmentFailed, EnvironmentImpossible, environment_folders
from trainers.environments.public_package import public_package
from trainers.environments.worker_python import WorkerPython, make_worker_python
from trainers.inputs.download import InputMissing
from trainers.isolation.confined import ConfinedJob, confined_job
from trainers.isolation.mounts import Shown
from trainers.job_storage import JobStorages
from trainers.node_folders import shared_folder
from trainers.outputs.catalog import OutputsCatalog
from trainers.outputs.manifest import Changes, OutputFile
from trainers.plan import AttemptPlan
from trainers.processes.child import Child
from trainers.processes.fork_server_client import ForkServer, job_fork_server
from trainers.processes.python_stacks import stacks_below
from trainers.secret_values import values_of
from trainers.storage import StorageError
from trainers.supervisor.checkpoint_intake import (
    MAX_UNDER_WAY,
    CheckpointIntake,
    CheckpointOffer,
    TakeCounter,
    TakenFolder,
)
from trainers.supervisor.disk_watch import DiskWatch
from trainers.supervisor.launch_context import expression_values, fetch_code, fetch_resume, prepare_launch
from trainers.supervisor.memory_watch import MemoryWatch
from trainers.supervisor.node_sweep import sweep_node
from trainers.supervisor.outbox import Outbox, ReportFilter
from trainers.supervisor.output_links import first_of_node, link_outputs, own_outputs, unlinked
from trainers.supervisor.outputs_collector import OutputsCollector
from trainers.supervisor.preparation import NodeFolders, Preparation, prepare_node
from trainers.supervisor.redacted_messages import Messages, RedactedMessages
from trainers.supervisor.redaction import Redactor
from trainers.supervisor.secret_files import FOLDER_VARIABLE, secret_files
from trainers.supervisor.shard_transfer import CheckpointShard, send, size_of
from trainers.supervisor.sidecar import RunningSidecar
from trainers.supervisor.snapshot_memory import SnapshotSpace, confined_space, most_bytes, snapshot_space
from trainers.supervisor.storage_asking import ask_through
from trainers.supervisor.temporary_folders import temporary_folder
from trainers.supervisor.write_speed import WriteSpeed, fits
from trainers.worker_identity import WorkerIdentity

#: Messages of a script that go to the driver; `checkpoint` is for the supervisor, and all others are dropped.
_FOR_DRIVER = frozenset(
    {
        "hello",
        "report",
        "held",
        "abandoned",
        "stalled",
        "saving",
        "pace",
        "elastic",
        "parted",
        "joined",
        "diverged",
    }
)
#: Seconds a script gets between SIGTERM and SIGKILL.
_GRACE_S = 5.0


class PlannedStop(Exception):
    """The driver ended this worker: to change the size of the worker group, or because the attempt ends."""


class CommandUnusable(Exception):
    """The operating system does not accept the command."""


class SidecarFailed(Exception):
    """The sidecar failed before the command had begun; the message says how."""


class ChildFailed(Exception):
    """The command of this rank failed; the driver already knows how."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """What one supervisor is to run."""

    plan: AttemptPlan
    identity: WorkerIdentity
    #: Handle of the driver actor.
    driver: Any
    #: Checkpoint to resume from.
    resume: Manifest | None
    #: The job's outputs, by name.
    outputs: Mapping[str, OutputFile] = field(default_factory=dict)
    #: Name of this worker for its whole life; its rank changes when the worker group changes in place.
    slot: int
    #: True for a worker that joins a worker group which trains already.
    is_joining: bool = False
    #: The values of the plan's secrets, by name.
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)


_assignment: Assignment | None = None
_running: Supervisor | None = None
#: Instructions that came before the training function started.
_early: list[channel.Message] = []
_starting = threading.Lock()


def prepare(assignment: Assignment, *secrets: bytes) -> None:
    """Take an assignment, and the pieces of the values of its secrets; called before the training function starts."""
    global _assignment
    _assignment = dataclasses.replace(assignment, secrets=values_of(secrets))


def instruct(message: channel.Message) -> None:
    """Take an instruction of the driver for the child, now or as soon as it runs."""
    with _starting:
        running = _running
        if running is None:
            _early.append(message)
    if running is not None:
        running.instruct(message)


def supervise() -> None:
    """Run the prepared assignment to its end; what Ray Train calls as the training function.

    Raises ChildFailed or PlannedStop, which tells Ray Train that this worker has ended.
    """
    global _running
    if _assignment is None:
        raise RuntimeError("this worker was started without an assignment")
    running = Supervisor(_assignment)
    with _starting:
        for message in _early:
            running.instruct(message)
        _running = running
    running.run()


class Supervisor:
    """One rank's supervisor."""

    def __init__(self, assignment: Assignment, messages: Messages | None = None) -> None:
        """`messages` takes what would go to the driver; None: the driver of the assignment does."""
        self._plan = assignment.plan
        self._identity = assignment.identity
        self._resume = assignment.resume
        self._is_joining = assignment.is_joining
        self._slot = assignment.slot
        #: The user and the view of the job's commands here; None: they are those of the node.
        self._job: ConfinedJob | None = None
        #: What is sent as it is; the command's lines are redacted before they are cut.
        self._sent: Messages = messages or Outbox(
            assignment.driver, assignment.identity.generation, assignment.slot, self._driver_is_gone
        )
        self._secrets = assignment.secrets
        #: Takes the values of secrets out of texts; None: the job has none.
        self._redactor = Redactor(assignment.secrets) if assignment.secrets else None
        self._outbox = self._sent if self._redactor is None else RedactedMessages(self._sent, self._redactor)
        #: The folder with the secrets of this worker; None: it has none.
        self._secrets_folder: Path | None = None
        self._report_filter = ReportFilter()
        self._backend = backend_of(assignment.plan.backend)
        self._child: Child | None = None
        self._sidecar: RunningSidecar | None = None
        #: The interpreter for the command, and what forks it; None until they are there.
        self._python: WorkerPython | None = None
        self._fork_server: ForkServer | None = None
        self._preparation = Preparation()
        self._sidecar_failure: str | None = None
        #: True once the command is over, or will not be started.
        self._is_over = False
        self._stop_requested = False
        #: Set with it, for what waits.
        self._stopping = threading.Event()
        #: Set once all ranks have their environment, or this one is to stop.
        self._may_begin = threading.Event()
        self._stop_is_near = False
        self._driver = assignment.driver
        self._storages = JobStorages(assignment.plan, ask_through(assignment.driver))
        self._speed = WriteSpeed(assignment.plan.write_bytes_per_s)
        #: When this job's first machine is preempted, by the monotonic clock; None: none is.
        self._deadline_at: float | None = None
        self._uploads: list[threading.Thread] = []
        self._take_counter = TakeCounter()
        self._intake: CheckpointIntake | None = None
        self._files = assignment.outputs
        #: Watches the outputs folder; None until the folder is there.
        self._collector: OutputsCollector | None = None
        #: Memory for checkpoints on their way to the storage; None where this node has none.
        self._snapshots: SnapshotSpace | None = None
        #: Watches the files that the command makes in memory.
        self._watch: MemoryWatch | None = None
        self._disk: DiskWatch | None = None
        #: Why the command was ended, when it exceeded a limit.
        self._excess: str | None = None
        #: The script's own reason why it cannot train at all.
        self._refusal: str | None = None
        self._lock = threading.Lock()

    def run(self) -> None:
        """Prepare the folder, run the child, deliver everything."""
        try:
            self._run()
        except (PlannedStop, ChildFailed):
            raise
        except IsolationImpossible as error:
            self._report_trouble(str(error))
            raise ChildFailed(str(error)) from error
        except Exception as error:
            # So that the driver learns what has failed.
            why = self._clean(f"the supervisor failed: {type(error).__name__}: {error}")
            self._report_trouble(why[:1000])
            # Ray writes what an error came from into its logs, as it is.
            raise ChildFailed(self._clean(str(error))) from (None if self._redactor else error)

    def _run(self) -> None:
        identity = self._identity
        sweep_node()
        name = f"{identity.attempt_id}-{identity.generation}"
        if self._is_joining:
            # Its rank is assigned later: until then it may be that of another worker on this node.
            name += f"-{self._slot}"
        own = f"{name}-{identity.rank}-{os.getpid()}"
        with (
            temporary_folder(identity.attempt_id, self._say) as temporary,
            shared_folder(name) as folder,
            confined_job(
                self._plan.isolation,
                identity.attempt_id,
                folder,
                temporary,
                self._plan.project,
                self._plan.project_cache_bytes,
            ) as self._job,
            self._memory_for(own) as self._snapshots,
            contextlib.ExitStack() as in_use,
        ):
            if self._job is not None:
                temporary = self._job.temporary
            try:
                self._secrets_folder = in_use.enter_context(secret_files(own, self._secrets))
                code = fetch_code(self._plan, self._storages, folder)
                target = folder / f"resume-{identity.rank}"
                resume = fetch_resume(self._plan, self._storages, self._resume, target)
                prepared = self._preparation = self._prepare(in_use, code, folder, temporary, resume)
                if prepared.container is None:
                    built = prepared.built
                    own_python = folder / f"python-{identity.rank}"
                    self._python = make_worker_python(own_python, None if built is None else built.python)
                    # One would import packages of the job, as the node's user.
                    if self._job is None or built is None:
                        self._fork_server = job_fork_server(self._plan.warm_modules, built)
                collector = self._fill_outputs(own_outputs(folder, identity))
                launch = prepare_launch(
                    self._plan,
                    identity,
                    folder,
                    code=code,
                    python=self._python,
                    inputs=prepared.inputs,
                    container=prepared.container,
                    resume=self._resume,
                    fetched=resume,
                    outputs=collector.folder,
                    snapshots=self._snapshots,
                    temporary=temporary,
                    job=self._job,
                    is_joining=self._is_joining,
                )
                child = self._start(launch, folder, collector, temporary)
            except (CommandUnusable, InputMissing) as error:
                self._finish({"start_failed": str(error)})
            except (EnvironmentFailed, EnvironmentImpossible) as error:
                self._finish({"environment_failed": self._clean(str(error))[:4000]})
            except (StorageError, OSError) as error:
                self._report_trouble(f"preparing the code failed: {error}")
                # Ray writes what an error came from into its logs, as it is.
                raise ChildFailed(self._clean(str(error))) from (None if self._redactor else error)
            except (BundleError, BackendUnusable) as error:
                self._finish({"start_failed": str(error)})
            else:
                self._conclude(child, launch)
            finally:
                self._close_parts()

    def _close_parts(self) -> None:
        for watch in (self._watch, self._disk):
            if watch is not None:
                watch.close()
        if self._sidecar is not None:
            self._sidecar.end()
        if self._intake is not None:
            self._intake.close()

    def _prepare(
        self, in_use: contextlib.ExitStack, code: Path, folder: Path, temporary: Path, resume: Path | None
    ) -> Preparation:
        """What the command finds on this node, as long as `in_use` is open."""
        if not self._plan.prepares:
            return Preparation()
        # A joiner prepares while the others train; they are the group that the driver reports.
        report = (lambda _: None) if self._is_joining else self._outbox.put

        def say(text: str) -> None:
            self._outbox.put_lines("remora", text)

        def show(what: str, state: str) -> None:
            report({"type": "preparing", "what": what, "state": state})

        confined = None if self._snapshots is None else self._snapshots.confined
        memory = None if confined is None else confined.shared
        folders = NodeFolders(group=folder, code=code, temporary=temporary, resume=resume, memory=memory)
        prepared = prepare_node(self._plan, self._storages, folders, in_use, say, show, self._stopping)
        report({"type": "prepared", **prepared.facts})
        self._outbox.flush()
        if not self._is_joining:
            # A rank that waited in the rendezvous for one whose node still prepares could give up.
            self._may_begin.wait()
        return prepared

    def _clean(self, text: str) -> str:
        """The text without values of secrets, before it is cut."""
        return text if self._redactor is None else self._redactor.redact(text)

    def _command_environment(self, launch: LaunchContext) -> Mapping[str, str]:
        """Variables of the command alone, and not of its sidecar; those with secrets are read from their files."""
        folder = self._secrets_folder
        return launch.environment if folder is None else {**launch.environment, FOLDER_VARIABLE: str(folder)}

    def _secret_variables(self) -> Mapping[str, str]:
        """The files whose contents become variables of the command, by the names of these."""
        folder = self._secrets_folder
        if folder is None:
            return {}
        uses = self._plan.secrets.items()
        return {variable: str(folder / name) for name, variable in uses if variable and name in self._secrets}

    def _conclude(self, child: Child, launch: LaunchContext) -> None:
        try:
            status = self._wait(child, launch)
        except SidecarFailed as error:
            blame = self._backend.blame(launch)
            if blame is None:
                # A port that is taken, a node that went.
                self._report_trouble(str(error))
                raise ChildFailed(str(error)) from error
            status = {"start_failed": blame}
        self._finish(status)

    def _report_trouble(self, why: str) -> None:
        """Report why this worker cannot go on, when the command is not the cause."""
        self._outbox.put({"type": "trouble", "message": why})
        self._outbox.close()

    def instruct(self, message: channel.Message) -> None:
        """Act on an instruction of the driver."""
        kind = message["type"]
        if kind == "dump":
            threading.Thread(target=self._dump, name="dump", daemon=True).start()
            return
        if kind == "look":
            self._scan_outputs(message)
            return
        with self._lock:
            child = self._child
            if kind == "stop":
                self._note_stop()
            elif kind == "begin":
                self._may_begin.set()
            elif kind == "decide":
                self._stop_is_near = bool(message.get("stop"))
            elif kind == "regroup":
                self._regroup(message)
            elif kind == "release":
                self._stop_is_near = False
            elif kind == "preemption":
                deadline_at = message.get("deadline_at")
                # Computed once: the wall clock may be set before the deadline.
                left_s = None if deadline_at is None else deadline_at - time.time()
                self._deadline_at = None if left_s is None else time.monotonic() + left_s
                if self._collector is not None:
                    self._collector.scan_now()
            if child is not None and kind not in ("stop", "begin"):
                # Under the lock, so that a `taken` decided before a `release` cannot overtake it.
                child.send(message)
            if self._sidecar is not None and kind == "stop" and self._is_over:
                self._sidecar.stop()
        if kind == "stop":
            self._outbox.flush()
        if child is not None and kind == "stop":
            child.stop(at_once=bool(message.get("at_once")))

    def _note_stop(self) -> None:
        self._stop_requested = True
        self._stopping.set()
        self._may_begin.set()

    def _dump(self) -> None:
        """Report the stacks of the child's processes."""
        with self._lock:
            child = self._child
        text = "The command was not started yet." if child is None else stacks_below(child.pid, self._clean)
        self._outbox.put({"type": "stack", "text": text})

    def _scan_outputs(self, message: channel.Message) -> None:
        """Scan the outputs folder, once there is one."""
        with self._lock:
            collector = self._collector
        if collector is not None:
            collector.scan(int(message["round"]))

    def _regroup(self, message: channel.Message) -> None:
        """The worker group changed in place: another number, another rank, another rendezvous."""
        names = [field.name for field in dataclasses.fields(WorkerIdentity)]
        changed = {name: message[name] for name in names if name in message}
        self._identity = dataclasses.replace(self._identity, **changed)
        self._stop_is_near = False
        self._outbox.generation = self._identity.generation

    def _wait(self, child: Child, launch: LaunchContext) -> dict[str, object]:
        """Wait for the end of the command, and of its sidecar when both end well; returns how the command ended.

        Raises SidecarFailed.
        """
        status = child.wait()
        if self._watch is not None:
            # Its process id may be reused from now on.
            self._watch.close()
        if self._collector is not None:
            self._collector.note_end()
        with self._lock:
            self._is_over = True
            was_stopped = self._stop_requested
            is_well = status.get("exit_code") == 0 and not was_stopped
        if is_well:
            self._backend.returned(launch)
            if self._sidecar is not None:
                self._sidecar.finish()
        failure = None if was_stopped else self._sidecar_failure
        if failure is not None and not self._backend.has_started(launch):
            raise SidecarFailed(failure)
        return status

    def _give_up(self, why: str) -> None:
        """The sidecar failed; a command that it serves cannot go on."""
        self._outbox.put_lines("remora", why)
        with self._lock:
            self._sidecar_failure = why
            child = self._child
        if child is not None:
            child.stop(at_once=True)

    def _end_for_disk(self, size: int) -> None:
        """End a command that fills the disk of its node."""
        most = self._plan.max_disk_bytes
        has = (
            f"have {format_size(size)} ({size} bytes)"
            if size < 1 << 62
            else "lie in too many folders to be counted"
        )
        self._end_for_excess(
            f"the files of its job on the node's disk {has}, and may have {format_size(most)} ({most} bytes,"
            " REMORA_MAX_DISK_BYTES); let it keep less there, or have operators allow more"
        )

    def _end_for_memory(self, size: int, most: int) -> None:
        """End a command that fills the memory of its machine."""
        self._end_for_excess(
            f"its files in /dev/shm have {format_size(size)} ({size} bytes), and those of one worker may have"
            f" {format_size(most)} ({most} bytes, REMORA_MAX_SHM_BYTES); let it keep less there, or have operators"
            " allow more"
        )

    def _end_for_excess(self, why: str) -> None:
        with self._lock:
            child = self._child
            if child is None or self._is_over or self._stop_requested:
                return
            self._excess = why
        self._outbox.put_lines("remora", f"the command is ended: {self._excess}")
        child.stop(at_once=True)

    def _start(
        self, launch: LaunchContext, folder: Path, collector: OutputsCollector, temporary: Path
    ) -> Child:
        plan, identity = self._plan, self._identity
        staging = folder / f"staging-{identity.rank}"
        staging.mkdir()
        self._intake = CheckpointIntake(launch.scratch, staging, self._snapshots)
        link_outputs(launch.code, folder, identity, plan.output_paths, is_joining=self._is_joining)
        if plan.output_files:
            with first_of_node(folder, "files") as is_first:
                leads = self._is_joining or identity.local_rank == 0
                collector.place_files(launch.code, is_first=is_first, collects=leads)
        launch = self._confined(launch, folder)
        if (space := self._snapshots) is not None and space.confined is None:
            most = plan.max_shm_bytes or most_bytes(space.memory)
            self._watch = MemoryWatch(
                space.memory, space.own, space.record, most, lambda size: self._end_for_memory(size, most)
            )
        if plan.max_disk_bytes:
            self._disk = self._disk_watch(launch, temporary)
        values = expression_values(identity, launch.inputs)
        command = [fill(word, values, str(collector.folder)) for word in self._backend.command(launch)]
        self._start_sidecar(launch)
        # Under the lock, so that the child's first message can be answered.
        with self._lock:
            try:
                child = self._child = Child(
                    command,
                    folder=launch.code,
                    environment=self._command_environment(launch),
                    variable_files=self._secret_variables(),
                    line_bytes=plan.log_line_bytes,
                    grace_s=_GRACE_S,
                    on_lines=self._sent.put_lines,
                    filters=None if self._redactor is None else self._redactor.stream,
                    on_over=self._outbox.flush,
                    on_message=self._receive,
                    fork_server=self._fork_server,
                    python=self._python,
                    most_processes=plan.max_processes,
                    container=0 if (inside := self._preparation.container) is None else inside.pid,
                    confinement=launch.confinement,
                )
            except ValueError as error:
                raise CommandUnusable(str(error)) from error
            except OSError as error:
                if error.errno != errno.E2BIG:
                    raise
                raise CommandUnusable("its arguments and environment variables are too long") from error
            stop_requested = self._stop_requested or self._sidecar_failure is not None
        collector.start()
        if self._watch is not None:
            self._watch.start(child.processes)
        if self._disk is not None:
            self._disk.start()
        for path in unlinked(launch.code, plan.output_paths):
            self._outbox.put_lines("remora", f"{path} is in the code, so what is written there is not kept")
        self._outbox.put({"type": "started", "pid": child.pid, "is_warm": child.is_warm})
        if stop_requested:
            child.stop(at_once=True)
        return child

    def _disk_watch(self, launch: LaunchContext, temporary: Path) -> DiskWatch:
        """Of what the job writes: not of what the node fetched for it."""
        folders = [launch.code, launch.scratch, launch.outputs, launch.exchange, temporary]
        job = self._job
        if job is not None:
            folders += [job.home, job.kept]
        return DiskWatch(
            folders,
            self._plan.max_disk_bytes,
            self._end_for_disk,
            uid=None if job is None else job.uid,
            workers=self._identity.local_world_size,
        )

    def _memory_for(self, name: str) -> contextlib.AbstractContextManager[SnapshotSpace | None]:
        workers = self._identity.local_world_size
        if self._job is None:
            return snapshot_space(name, workers)
        return confined_space(name, workers, self._plan.max_shm_bytes, self._job)

    def _may_confine_containers(self) -> bool:
        """Whether a job's user exists in containers: not in the user namespaces that podman makes without root.

        Raises IsolationImpossible where commands may not run without a user of their own.
        """
        if os.geteuid() == 0:
            return True
        why = "containers of this node have no user for the job, because its service is not root"
        if self._plan.isolation == "users":
            raise IsolationImpossible(
                f"the node runs no command: isolation is users, and {why}; leave environment.image out"
            )
        self._say(f"{why}: the command runs with the rights of the node")
        return False

    def _confined(self, launch: LaunchContext, folder: Path) -> LaunchContext:
        """Give the worker's folders to the job's user; returns how its commands become that user's."""
        job, prepared = self._job, self._preparation
        if job is None or (prepared.container is not None and not self._may_confine_containers()):
            return launch
        memory = None if self._snapshots is None else self._snapshots.confined
        job.own(launch.code, launch.scratch, launch.outputs, launch.exchange)
        read = [*prepared.inputs.values(), *([launch.resume] if launch.resume is not None else [])]
        if prepared.built is not None:
            read += environment_folders(prepared.built)
        if prepared.container is not None:
            read.append(public_package())
        if self._secrets_folder is not None:
            # It lies in the memory of the node, of which the command sees nothing else.
            job.own(self._secrets_folder)
            read.append(self._secrets_folder)
        shown = [Shown(source=path, target=path) for path in read]
        shown.append(Shown(source=folder, target=folder, is_read_only=False))
        if prepared.container is not None:
            return dataclasses.replace(launch, confinement=job.in_container(shown, memory))
        if self._python is not None:
            job.own(self._python.python.parent.parent)
        return dataclasses.replace(launch, confinement=job.on_node(shown, memory))

    def _say(self, text: str) -> None:
        self._outbox.put_lines("remora", text)

    def _start_sidecar(self, launch: LaunchContext) -> None:
        sidecar = self._backend.sidecar(launch)
        if sidecar is not None:
            self._sidecar = RunningSidecar(
                sidecar,
                folder=launch.code,
                line_bytes=self._plan.log_line_bytes,
                on_line=self._say,
                on_failure=self._give_up,
                confinement=launch.confinement,
            )

    def _fill_outputs(self, folder: Path) -> OutputsCollector:
        """Make the outputs folder, with the job's outputs so far."""

        def report(changes: Changes) -> None:
            self._outbox.put({"type": "outputs", "changes": changes})

        catalog = OutputsCatalog(self._storages.open(self._plan.checkpoint_url), self._plan.job_id)
        collector = OutputsCollector(
            folder,
            catalog,
            lambda: self._identity,
            report,
            lambda text: self._outbox.put_lines("remora", text),
            outputs=self._plan.outputs,
            paths=self._plan.output_files,
            most_bytes=self._plan.max_output_bytes,
        )
        collector.fill(self._files)
        self._collector = collector
        return collector

    def _receive(self, message: channel.Message) -> None:
        """Take a message of the child."""
        if message["type"] == "abandoned":
            # The other ranks may have made theirs, and counted it.
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                self._take_counter.count(int(message["step"]), self._identity.generation)
        if message["type"] in _FOR_DRIVER:
            if self._report_filter.is_needed(message, self._identity, time.monotonic()):
                self._outbox.put(message)
        elif message["type"] == "refused":
            self._refusal = self._clean(str(message.get("message", "")))[:1000]
        elif message["type"] == "checkpoint":
            try:
                offer = CheckpointOffer.from_message(message, self._identity.generation)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                why = self._clean(f"a checkpoint message was not understood: {error!r}")
                self._outbox.put_lines("remora", why[:400])
            else:
                self._take(offer)

    def _take(self, offer: CheckpointOffer) -> None:
        """Take a rank's files of a checkpoint, and let the script go on unless its planned end comes."""
        assert self._intake is not None
        # Written by the group that it names, which may have changed in place meanwhile: then it is dropped.
        identity = dataclasses.replace(self._identity, generation=offer.generation)
        number = self._take_counter.count(offer.step, offer.generation)
        self._uploads = [upload for upload in self._uploads if upload.is_alive()]
        try:
            if len(self._uploads) >= MAX_UNDER_WAY:
                raise OSError(f"{MAX_UNDER_WAY} checkpoints before it are still on their way to the storage")  # noqa: TRY301
            taken = self._intake.take(offer)
        except OSError as error:
            why = self._clean(f"the checkpoint of step {offer.step} could not be taken: {error}")
            self._outbox.put_lines("remora", why[:1000])
            self._outbox.put({"type": "abandoned", "step": offer.step})
        else:
            upload = threading.Thread(target=self._upload, args=(taken, offer, identity, number))
            self._uploads.append(upload)
            upload.start()
        with self._lock:
            if self._child is not None:
                park = offer.asked and self._stop_is_near
                self._child.send({"type": "taken", "step": offer.step, "park": park})

    def _upload(
        self, taken: TakenFolder, offer: CheckpointOffer, identity: WorkerIdentity, number: int
    ) -> None:
        """Store the files, or send them to the driver when the storage would not have them in time."""
        try:
            size = size_of(taken.folder)
            with self._lock:
                now = time.monotonic()
                speed, ahead = self._speed.bytes_per_s(now), self._speed.waiting_bytes
                in_time = fits(size + ahead, speed, self._deadline_at, now)
            shard = CheckpointShard(
                rank=identity.rank,
                step=offer.step,
                attempt=identity.attempt,
                generation=identity.generation,
                size_bytes=size,
                asked=offer.asked,
                take=number,
            )
            if in_time or not send(self._driver, shard, taken.folder):
                self._store(taken.folder, shard)
        except OSError as error:
            self._report_unstored(offer.step, error)
        finally:
            taken.discard()

    def _store(self, folder: ConfinedFolder, shard: CheckpointShard) -> None:
        with self._lock:
            write = self._speed.begin(shard.size_bytes, time.monotonic())
        try:
            catalog = Catalog(self._storages.open(self._plan.checkpoint_url), self._plan.job_id)
            files = catalog.put(folder, shard.step, shard.attempt, shard.generation, shard.rank, shard.take)
        except (StorageError, OSError) as error:
            with self._lock:
                self._speed.drop(write)
            self._report_unstored(shard.step, error)
            return
        with self._lock:
            self._speed.end(write, time.monotonic())
        message = {"type": "shard", "step": shard.step, "files": files, "asked": shard.asked}
        self._outbox.put({**message, "generation": shard.generation, "take": shard.take})

    def _report_unstored(self, step: int, error: Exception) -> None:
        self._outbox.put_lines("remora", f"the checkpoint of step {step} could not be stored: {error}"[:1000])
        self._outbox.put({"type": "abandoned", "step": step})

    def _finish(self, status: dict[str, object]) -> None:
        if self._excess is not None and status.get("signal") == signal.SIGKILL:
            status = {**status, "excess": self._excess}
        elif status.get("signal") == signal.SIGKILL and not self._stop_requested:
            # At once: the others may go on without this rank while its files are still being stored.
            self._outbox.put({"type": "killed"})
        for upload in self._uploads:
            upload.join()
        if self._collector is not None:
            code = status.get("exit_code")
            self._collector.finish(end="killed" if code is None else "failed" if code else "clean")
        outlived = status.pop("outlived", 0)
        if self._refusal is not None and status.get("exit_code") not in (None, 0):
            status = {"start_failed": self._refusal}
        if outlived:
            self._outbox.put_lines(
                "remora", f"{outlived} processes that the command had left behind were ended"
            )
        self._outbox.put({"type": "exit", "stopped": self._stop_requested, **status})
        self._outbox.close()
        if status.get("exit_code") == 0:
            return
        if self._stop_requested:
            raise PlannedStop
        raise ChildFailed(self._clean(str(status)))

    def _driver_is_gone(self) -> None:
        """The driver is gone: end the child."""
        with self._lock:
            self._note_stop()
            child, sidecar = self._child, self._sidecar
        if child is not None:
            child.stop(at_once=True)
        if sidecar is not None:
            sidecar.stop()
