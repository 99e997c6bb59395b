"""Prepares the launch of a worker's command on its node: code, folders, checkpoint to resume from, environment."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from remora.errors import BundleError
from remora.job_commands.expressions import fill
from remora.job_commands.launchers import may_start_a_launcher, unwrap
from remora.job_commands.nested_launchers import put_on_path
from remora.ray_labels import are_packages_brought
from trainers.backends import backend_of
from trainers.backends.backend import LaunchContext
from trainers.checkpoints.catalog import Catalog
from trainers.checkpoints.manifest import Manifest
from trainers.checkpoints.parts import files_of_node
from trainers.containers.container import Container
from trainers.environments.worker_python import WorkerPython
from trainers.isolation.confined import ConfinedJob, redirected
from trainers.isolation.variables import machine_variables
from trainers.job_storage import JobStorages
from trainers.network_interface import interface_of
from trainers.node_folders import fill_once, unpack_once, work_root
from trainers.plan import AttemptPlan
from trainers.public_package import public_folder
from trainers.supervisor.child_environment import child_environment, variables_in_container
from trainers.supervisor.device import device_variables, devices_of_node
from trainers.supervisor.kept_checkpoints import KeptCheckpoints
from trainers.supervisor.snapshot_memory import SnapshotSpace
from trainers.supervisor.tracker_variables import tracker_variables
from trainers.supervisor.worker_of_ray import worker_of_ray
from trainers.worker_identity import WorkerIdentity


def fetch_code(plan: AttemptPlan, storages: JobStorages, folder: Path) -> Path:
    """The folder of the job's code below its worker group's `folder` on this node.

    Raises BundleError, StorageError, OSError.
    """
    try:
        return unpack_once(storages.open(plan.storage_url), plan.bundle, folder)
    except FileNotFoundError as error:
        raise BundleError(f"the code bundle {plan.bundle} is not in the storage any more") from error


def fetch_resume(
    plan: AttemptPlan,
    storages: JobStorages,
    resume: Manifest | None,
    folder: Path,
    check: Callable[[], None] = lambda: None,
    *,
    kept: KeptCheckpoints,
    identity: WorkerIdentity,
) -> Path | None:
    """The checkpoint to resume from, for a worker group with that `folder` on this node; None: there is none.

    Of a sharded model it holds the files that are this node's part.  One of the workers here fetches it for all, from
    what is `kept` before the storage, and `check` may raise while that goes on.
    Raises CheckpointDamaged, StorageError, OSError.
    """
    if resume is None:
        return None
    catalog = Catalog(storages.open(plan.checkpoint_url), plan.job_id)
    needed = files_of_node(resume, identity.node_rank, identity.num_nodes)
    part = dataclasses.replace(resume, files=tuple(file for file in resume.files if file.name in needed))
    above, name = kept.place_for(part, identity.generation, folder)
    return fill_once(above, name, lambda target: catalog.fetch(part, target, check, kept.give), check)


def _address_of_node() -> str:
    """As Ray knows it, in a worker of Ray; otherwise the worker has none but itself to meet."""
    ray = worker_of_ray()
    return "127.0.0.1" if ray is None else str(ray.util.get_node_ip_address())


def prepare_launch(
    plan: AttemptPlan,
    identity: WorkerIdentity,
    folder: Path,
    *,
    code: Path,
    python: WorkerPython | None,
    container: Container | None = None,
    inputs: Mapping[str, Path],
    resume: Manifest | None,
    fetched: Path | None,
    outputs: Path,
    snapshots: SnapshotSpace | None,
    temporary: Path,
    job: ConfinedJob | None = None,
    is_joining: bool,
) -> LaunchContext:
    """Make what the worker needs in its node's `folder`, and return the context in which its command is started.

    `code` is the folder of the job's code, `python` the interpreter for its command, None in a `container`, which has
    its own, `inputs` the paths of its inputs by name, `fetched` the folder of the checkpoint `resume`.  The command's
    temporary files lie in `temporary`, or where those of the confined `job` do, unless the job says where.
    Raises StorageError, OSError, and BackendUnusable.
    """
    scratch = folder / f"scratch-{identity.rank}"
    scratch.mkdir()
    exchange = folder / "exchange"
    exchange.mkdir(exist_ok=True)
    if job is not None:
        job.own(exchange)
    interface = interface_of(_address_of_node())
    unwrapped = unwrap(plan.command)
    values = expression_values(identity, inputs)
    written = {**unwrapped.variables, **plan.variables}
    asked = {name: fill(value, values, str(outputs)) for name, value in written.items()}
    inherited = os.environ if job is None else machine_variables(os.environ)
    environment = child_environment(
        redirected(
            inherited if container is None else variables_in_container(inherited, container.variables), job
        ),
        asked,
        identity,
        cpus=plan.resources.get("CPU", 1.0),
        interface=interface,
        path_folders=() if python is None else python.path_folders,
        traceparent=plan.traceparent,
    )
    if python is not None:
        environment["VIRTUAL_ENV"] = str(python.python.parent.parent)
    public = None
    if container is not None or are_packages_brought():
        public = public_folder(folder)
        of_image = None if container is None else container.variables.get("PYTHONPATH")
        before = environment.get("PYTHONPATH") or of_image
        environment["PYTHONPATH"] = f"{before}:{public}" if before else str(public)
    if may_start_a_launcher(unwrapped.command):
        programs = folder / f"launchers-{identity.rank}"
        sizes = plan.sizes
        interpreter = sys.executable if container is None else "python3"
        environment |= put_on_path(programs, interpreter, sizes.min, sizes.max, environment["PATH"], public)
    gpus = plan.resources.get("GPU", 0.0)
    device_settings = device_variables(
        plan.device, plan.precision, gpus, devices_of_node(), identity, interface
    )
    # The user's own variables win.
    environment.update({name: value for name, value in device_settings.items() if name not in asked})
    environment.update(plan.elastic_variables)
    environment["REMORA_SCRATCH_DIR"] = str(scratch)
    environment["REMORA_OUTPUTS_DIR"] = str(outputs)
    if "TMPDIR" not in asked and job is None:
        environment["TMPDIR"] = str(temporary)
    if container is None and job is None:
        # Later workers of the node reuse what torch has compiled.
        environment.setdefault("TORCHINDUCTOR_CACHE_DIR", str(work_root() / "torchinductor"))
    elif container is None and job is not None:
        # What is kept there is code, too: it is that of the job's project.
        environment.update({name: one for name, one in job.cache_variables().items() if name not in asked})
    environment |= tracker_variables(environment, identity, outputs, is_joining=is_joining)
    if snapshots is not None:
        environment.update(snapshots.variables())
    if is_joining:
        environment["REMORA_JOIN"] = "1"
    if resume is not None and fetched is not None:
        environment["REMORA_RESUME_DIR"] = str(fetched)
        environment["REMORA_RESUME_STEP"] = str(resume.step)
    launch = LaunchContext(
        plan=plan,
        identity=identity,
        code=code,
        shared=folder,
        exchange=exchange,
        scratch=scratch,
        outputs=outputs,
        resume=fetched,
        manifest=resume,
        environment=environment,
        inputs=inputs,
    )
    backend = backend_of(plan.backend)
    backend.prepare(launch)
    return dataclasses.replace(launch, environment={**environment, **backend.variables(launch)})


def expression_values(identity: WorkerIdentity, inputs: Mapping[str, Path]) -> dict[str, str]:
    """Values of the expressions that a command and its variables may use; see `remora.job_commands.expressions`."""
    return {
        "job.id": identity.job_id,
        "job.attempt": str(identity.attempt),
        "master.address": identity.master_addr,
        "master.port": str(identity.master_port),
        **{f"inputs.{name}": str(path) for name, path in inputs.items()},
    }
