"""Supervises one rank's command: starts it, passes its messages on to the driver, and ends with it."""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import os
import signal
import threading
import time
from pathlib import Path

from remora.errors import BundleError
from remora.isolation import IsolationImpossible
from remora.job_commands.expressions import fill
from remora.job_commands.started_commands import is_shell
from remora.script import channel
from remora.spec.quantities import format_size
from trainers.backends import backend_of
from trainers.backends.backend import BackendUnusable, LaunchContext
from trainers.checkpoints.catalog import CheckpointDamaged
from trainers.environments.build import BuiltEnvironment, EnvironmentFailed, EnvironmentImpossible
from trainers.environments.worker_python import WorkerPython, make_worker_python
from trainers.inputs.download import InputMissing
from trainers.isolation.confined import ConfinedJob, confined_job
from trainers.job_storage import JobStorages
from trainers.node_folders import shared_folder
from trainers.outputs.catalog import OutputsCatalog
from trainers.outputs.manifest import Changes
from trainers.processes.child import Child
from trainers.processes.fork_server_client import ForkServer, job_fork_server
from trainers.processes.python_stacks import stacks_below
from trainers.processes.shell_process import ShellPlace
from trainers.storage import StorageError
from trainers.supervisor.assignment import Assignment, ChildFailed, PlannedStop
from trainers.supervisor.checkpoint_intake import CheckpointOffer
from trainers.supervisor.checkpoint_uploads import CheckpointUploads
from trainers.supervisor.collectives_asked import CollectivesAsked
from trainers.supervisor.command_confinement import (
    CommandConfinement,
    memory_folder_watch,
    memory_for,
    memory_watch,
)
from trainers.supervisor.disk_watch import DiskWatch
from trainers.supervisor.kept_checkpoints import KeptCheckpoints, kept_checkpoints
from trainers.supervisor.launch_context import expression_values, fetch_code, fetch_resume, prepare_launch
from trainers.supervisor.load_watch import Load, LoadWatch, assigned_gpus
from trainers.supervisor.memory_watch import MemoryWatch
from trainers.supervisor.node_sweep import sweep_node
from trainers.supervisor.outbox import Outbox, ReportFilter
from trainers.supervisor.output_links import first_of_node, link_outputs, own_outputs, unlinked
from trainers.supervisor.outputs_collector import OutputsCollector
from trainers.supervisor.preparation import NodeFolders, Preparation, prepare_node
from trainers.supervisor.profiles import WorkerProfiles
from trainers.supervisor.redacted_messages import Messages, RedactedMessages
from trainers.supervisor.redaction import Redactor
from trainers.supervisor.secret_files import secret_files, variable_files, with_folder
from trainers.supervisor.shells import RayShellCalls, WorkerShells
from trainers.supervisor.sidecar import RunningSidecar
from trainers.supervisor.snapshot_memory import SnapshotSpace
from trainers.supervisor.storage_asking import ask_through
from trainers.supervisor.temporary_folders import temporary_folder
from trainers.worker_identity import WorkerIdentity

#: Messages of a script that go to the driver; `checkpoint` is for the supervisor, and all others are dropped.
_FOR_DRIVER = frozenset(
    {
        "hello",
        "batch",
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
        "miscomputed",
    }
)
log = logging.getLogger(__name__)

#: Seconds a script gets between SIGTERM and SIGKILL.
_GRACE_S = 5.0


class CommandUnusable(Exception):
    """The operating system does not accept the command."""


class SidecarFailed(Exception):
    """The sidecar failed before the command had begun; the message says how."""


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
        self._collectives = CollectivesAsked()
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
        #: The number of the agreement that was decided last.
        self._decided_by: object | None = None
        self._storages = JobStorages(assignment.plan, ask_through(assignment.driver))
        self._checkpoints = CheckpointUploads(
            assignment.plan, self._storages, assignment.driver, self._outbox, self.redacted
        )
        self._profiles = WorkerProfiles(assignment.plan, self._storages.open, self._outbox, self.redacted)
        self._shells = WorkerShells(RayShellCalls(assignment.driver), self.redacted)
        self._files = assignment.outputs
        #: Watches the outputs folder; None until the folder is there.
        self._collector: OutputsCollector | None = None
        #: Memory for checkpoints on their way to the storage; None where this node has none.
        self._snapshots: SnapshotSpace | None = None
        #: Checkpoints that stay on the node for the next worker group.
        self._kept: KeptCheckpoints | None = None
        #: Watches the files that the command makes in memory.
        self._watch: MemoryWatch | None = None
        self._disk: DiskWatch | None = None
        self._load: LoadWatch | None = None
        #: Watches the memory of the job where that is a folder.
        self._memory_folder: DiskWatch | None = None
        #: Why the command was ended, when it exceeded a limit.
        self._excess: str | None = None
        #: The script can change its worker group in place.
        self._is_elastic = False
        #: The command got SIGKILL, of which the driver may begin the worker group again in place.
        self.was_killed = False
        #: The script's own reason why it cannot train at all.
        self._refusal: str | None = None
        #: Why the script ended its own process, which is not its fault.
        self._stuck: str | None = None
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
            why = self.redacted(f"the supervisor failed: {type(error).__name__}: {error}")
            self._report_trouble(why[:1000])
            # Ray writes what an error came from into its logs, as it is.
            raise ChildFailed(self.redacted(str(error))) from (None if self._redactor else error)

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
            memory_for(own, self._plan, identity.local_world_size, self._job) as self._snapshots,
            contextlib.ExitStack() as in_use,
        ):
            if self._job is not None:
                temporary = self._job.temporary
            try:
                self._secrets_folder = in_use.enter_context(secret_files(own, self._secrets))
                code = fetch_code(self._plan, self._storages, folder)
                kept = self._kept = in_use.enter_context(
                    kept_checkpoints(identity.attempt_id, self._plan.max_disk_bytes)
                )
                resume = fetch_resume(
                    self._plan,
                    self._storages,
                    self._resume,
                    folder,
                    self._check_wanted,
                    kept=kept,
                    identity=identity,
                )
                if kept.given_bytes:
                    self._say(f"{format_size(kept.given_bytes)} of the checkpoint were still on this node")
                prepared = self._preparation = self._prepare(in_use, code, folder, temporary, resume)
                if prepared.container is None:
                    self._open_python(folder, prepared.built)
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
            except (BundleError, BackendUnusable, CommandUnusable, InputMissing) as error:
                self._finish({"start_failed": str(error)})
            except (EnvironmentFailed, EnvironmentImpossible) as error:
                self._finish({"environment_failed": self.redacted(str(error))[:4000]})
            except CheckpointDamaged as damaged:
                where = {"folder": damaged.folder, "file": damaged.file}
                self._outbox.put({"type": "damaged", **where, "why": str(damaged)})
                self._outbox.close()
                raise ChildFailed(f"the checkpoint cannot be used: {damaged}") from damaged
            except (StorageError, OSError) as error:
                self._report_trouble(f"preparing the code failed: {error}")
                # Ray writes what an error came from into its logs, as it is.
                raise ChildFailed(self.redacted(str(error))) from (None if self._redactor else error)
            else:
                self._conclude(child, launch)
            finally:
                self._close_parts()

    def _check_wanted(self) -> None:
        """Raise StorageError once this worker is to end."""
        if self._stopping.is_set():
            raise StorageError("the worker was asked to end")

    def _open_python(self, folder: Path, built: BuiltEnvironment | None) -> None:
        """Make the interpreter of the command, and find what forks it."""
        own = folder / f"python-{self._identity.rank}"
        self._python = make_worker_python(own, None if built is None else built.python)
        asked = self._plan.environment
        if self._job is not None and asked is not None and asked.setup is not None:
            log.debug("no warm start: environment.setup may have changed what is installed")
            return
        # One of the environment would import packages of the job, as the node's user.
        below = built if self._job is None else None
        self._fork_server = job_fork_server(self._plan.warm_modules, below)

    def _close_parts(self) -> None:
        for watch in (self._watch, self._disk, self._memory_folder, self._load):
            if watch is not None:
                watch.close()
        if self._sidecar is not None:
            self._sidecar.end()
        self._shells.close()
        self._checkpoints.close()
        self._profiles.close()

    def _prepare(
        self, in_use: contextlib.ExitStack, code: Path, folder: Path, temporary: Path, resume: Path | None
    ) -> Preparation:
        """What the command finds on this node, as long as `in_use` is open."""
        if not self._plan.prepares:
            return Preparation()
        # A joiner prepares while the others train; they are the group that the driver reports.
        report = (lambda _: None) if self._is_joining else self._outbox.put

        def show(what: str, state: str) -> None:
            report({"type": "preparing", "what": what, "state": state})

        confined = None if self._snapshots is None else self._snapshots.confined
        memory = None if confined is None else confined.shared
        folders = NodeFolders(group=folder, code=code, temporary=temporary, resume=resume, memory=memory)
        prepared = prepare_node(self._plan, self._storages, folders, in_use, self._say, show, self._stopping)
        report({"type": "prepared", **prepared.facts})
        self._outbox.flush()
        if not self._is_joining:
            # A rank that waited in the rendezvous for one whose node still prepares could give up.
            self._may_begin.wait()
        return prepared

    def redacted(self, text: str) -> str:
        """The text without values of secrets, before it is cut."""
        return text if self._redactor is None else self._redactor.redact(text)

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
        if kind == "profile":
            with self._lock:
                child = self._child
            self._profiles.ask(child, message)
            return
        if kind == "shell":
            self._shells.ask(message)
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
                self._decided_by = message.get("token")
            elif kind == "regroup":
                self._regroup(message)
            elif kind == "release":
                self._stop_is_near = False
            elif kind == "preemption":
                deadline_at = message.get("deadline_at")
                # Computed once: the wall clock may be set before the deadline.
                left_s = None if deadline_at is None else deadline_at - time.time()
                self._checkpoints.deadline_at = None if left_s is None else time.monotonic() + left_s
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
        """Report the stacks of the child's processes, and the collectives that the script began last."""
        with self._lock:
            child = self._child
        if child is None:
            self._outbox.put({"type": "stack", "text": "The command was not started yet."})
            return
        self._collectives.ask(child)
        text = stacks_below(child.pid, self.redacted)
        self._outbox.put({"type": "stack", "text": text, "collectives": self._collectives.answer()})

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
        for watch in (self._watch, self._load):
            if watch is not None:
                # Its process id may be reused from now on.
                watch.close()
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
        self._say(why)
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
        self._say(f"the command is ended: {self._excess}")
        child.stop(at_once=True)

    def _start(
        self, launch: LaunchContext, folder: Path, collector: OutputsCollector, temporary: Path
    ) -> Child:
        plan, identity = self._plan, self._identity
        staging = folder / f"staging-{identity.rank}"
        staging.mkdir()
        self._checkpoints.open(launch.scratch, staging, self._snapshots, self._kept)
        self._profiles.open(launch.scratch)
        link_outputs(launch.code, folder, identity, plan.output_paths, is_joining=self._is_joining)
        if plan.output_files:
            with first_of_node(folder, "files") as is_first:
                leads = self._is_joining or identity.local_rank == 0
                collector.place_files(launch.code, is_first=is_first, collects=leads)
        confinement = CommandConfinement(
            plan=plan,
            job=self._job,
            group=folder,
            prepared=self._preparation,
            snapshots=self._snapshots,
            secrets=self._secrets_folder,
            python=self._python,
        )
        launch = confinement.apply(launch, self._say)
        self._watch = memory_watch(plan, self._snapshots, self._end_for_memory)
        self._memory_folder = memory_folder_watch(
            self._snapshots, identity.local_world_size, self._end_for_memory
        )
        if plan.max_disk_bytes:
            self._disk = self._disk_watch(launch, temporary)
        values = expression_values(identity, launch.inputs)
        command = [fill(word, values, str(collector.folder)) for word in self._backend.command(launch)]
        self._start_sidecar(launch)
        inside = self._preparation.container
        place = ShellPlace(
            folder=launch.code,
            environment=with_folder(launch.environment, self._secrets_folder),
            variable_files=variable_files(plan.secrets, self._secrets, self._secrets_folder),
            container=0 if inside is None else inside.pid,
            confinement=launch.confinement,
            most_processes=plan.max_processes,
        )
        # Under the lock, so that the child's first message can be answered.
        with self._lock:
            try:
                child = self._child = Child(
                    command,
                    folder=place.folder,
                    environment=place.environment,
                    variable_files=place.variable_files,
                    line_bytes=plan.log_line_bytes,
                    grace_s=_GRACE_S,
                    on_lines=self._sent.put_lines,
                    filters=None if self._redactor is None else self._redactor.stream,
                    on_over=self._outbox.flush,
                    on_message=self._receive,
                    fork_server=self._fork_server,
                    python=self._python,
                    most_processes=place.most_processes,
                    container=place.container,
                    confinement=place.confinement,
                )
            except ValueError as error:
                raise CommandUnusable(str(error)) from error
            except OSError as error:
                if error.errno != errno.E2BIG:
                    raise
                raise CommandUnusable("its arguments and environment variables are too long") from error
            stop_requested = self._stop_requested or self._sidecar_failure is not None
        self._shells.begin(place)
        collector.start()
        if self._watch is not None:
            self._watch.start(child.processes)
        self._load = self._load_watch(child)
        for watch in (self._disk, self._memory_folder, self._load):
            if watch is not None:
                watch.start()
        for path in unlinked(launch.code, plan.output_paths):
            self._say(f"{path} is in the code, so what is written there is not kept")
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
            uid=None if job is None or job.has_namespaces else job.uid,
            workers=self._identity.local_world_size,
            spared=self._profiles.spared,
        )

    def _load_watch(self, child: Child) -> LoadWatch:
        def report(load: Load) -> None:
            self._outbox.put({"type": "load", **dataclasses.asdict(load)})

        return LoadWatch(
            child.processes, assigned_gpus(), report, world_size=lambda: self._identity.world_size
        )

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
            self._say,
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
            with contextlib.suppress(KeyError, TypeError, ValueError, OverflowError):
                self._checkpoints.count_abandoned(message, self._identity.generation)
        if message["type"] == "elastic":
            self._is_elastic = True
        if message["type"] == "hello":
            self._profiles.note_library()
        if message["type"] in _FOR_DRIVER:
            if self._report_filter.is_needed(message, self._identity, time.monotonic()):
                self._outbox.put(message)
        elif message["type"] == "collectives":
            self._collectives.receive(message)
        elif message["type"] == "profiled":
            self._profiles.receive(message)
        elif message["type"] == "stuck":
            self._stuck = self.redacted(str(message.get("text", "")))[:300]
        elif message["type"] == "refused":
            self._refusal = self.redacted(str(message.get("message", "")))[:1000]
        elif message["type"] == "checkpoint":
            try:
                offer = CheckpointOffer.from_message(message, self._identity.generation)
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                why = self.redacted(f"a checkpoint message was not understood: {error!r}")
                self._say(why[:400])
            else:
                self._take(offer)

    def _take(self, offer: CheckpointOffer) -> None:
        """Take a rank's files of a checkpoint, and let the script go on unless its planned end comes."""
        self._checkpoints.take(offer, self._identity)
        with self._lock:
            if self._child is not None:
                # What an earlier agreement asked for is not what the stop waits for.
                is_newest = offer.token in (None, self._decided_by) and (
                    offer.generation == self._identity.generation
                )
                park = offer.asked and self._stop_is_near and is_newest
                self._child.send({"type": "taken", "step": offer.step, "park": park})

    def _finish(self, status: dict[str, object]) -> None:
        self._shells.stop()
        got_sigkill = status.get("signal") == signal.SIGKILL
        if is_shell(self._plan.command):
            got_sigkill = got_sigkill or status.get("exit_code") == 128 + signal.SIGKILL
        if self._excess is not None and got_sigkill:
            status = {**status, "excess": self._excess}
        elif self._stuck is not None and status.get("exit_code") != 0 and not self._stop_requested:
            status = {**status, "stuck": self._stuck}
            self._outbox.put({"type": "killed", "stuck": self._stuck})
        elif got_sigkill and not self._stop_requested and self._sidecar_failure is None:
            # At once: the others may go on without this rank while its files are still being stored.
            self.was_killed = not self._is_elastic
            self._outbox.put({"type": "killed"})
        self._checkpoints.join()
        if self._kept is not None and status.get("exit_code") == 0:
            # No worker group follows.
            self._kept.give_back()
        self._profiles.join()
        if self._collector is not None:
            code = status.get("exit_code")
            self._collector.finish(end="killed" if code is None else "failed" if code else "clean")
        outlived = status.pop("outlived", 0)
        if self._refusal is not None and status.get("exit_code") not in (None, 0):
            status = {"start_failed": self._refusal}
        if outlived:
            self._say(f"{outlived} processes that the command had left behind were ended")
        self._outbox.put({"type": "exit", "stopped": self._stop_requested, **status})
        self._outbox.close()
        if status.get("exit_code") == 0:
            return
        if self._stop_requested:
            raise PlannedStop
        raise ChildFailed(self.redacted(str(status)))

    def _driver_is_gone(self) -> None:
        """The driver is gone: end the child."""
        with self._lock:
            self._note_stop()
            child, sidecar = self._child, self._sidecar
        self._shells.stop()
        if child is not None:
            child.stop(at_once=True)
        if sidecar is not None:
            sidecar.stop()
