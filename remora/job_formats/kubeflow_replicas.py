"""Jobs of Kubeflow's training operator and of its operator for MPI, whose workers are replicas of pods.

The schemas: https://www.kubeflow.org/docs/components/trainer/legacy-v1/ and its page on MPIJob, v2beta1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from remora.job_commands.launcher_options import OPTIONS
from remora.job_commands.launchers import unwrap
from remora.job_formats.containers import Command, Container, read_container, read_resources
from remora.job_formats.field_outcomes import MOST, Draft, Fields, text_of
from remora.job_formats.kubeflow_policies import read_run_policy
from remora.spec.problems import short


@dataclass(frozen=True, kw_only=True)
class _Framework:
    """How the jobs of one framework are written."""

    #: Section with the replicas by their roles.
    replicas: str
    container: str
    backend: str
    #: Roles whose replicas are workers, the one with rank 0 first.
    roles: tuple[str, ...]


@dataclass(frozen=True)
class _Group:
    """The replicas of one role."""

    count: int
    restart: str | None
    container: Container


_PYTORCH = _Framework(
    replicas="pytorchReplicaSpecs", container="pytorch", backend="ddp", roles=("Master", "Worker")
)
_JAX = _Framework(replicas="jaxReplicaSpecs", container="jax", backend="jax", roles=("Worker",))
_TENSORFLOW = _Framework(
    replicas="tfReplicaSpecs",
    container="tensorflow",
    backend="tensorflow",
    roles=("Chief", "Master", "Worker"),
)
#: Replicas of TensorFlow that are no workers.
_OTHER_ROLES = {
    "PS": "parameter servers are left out; use MultiWorkerMirroredStrategy",
    "Evaluator": "nothing evaluates beside the workers; evaluate in the script of the chief",
}


def _read_pytorch_job(draft: Draft, spec: Fields) -> None:
    _read_workers(draft, spec, _PYTORCH)


def _read_jax_job(draft: Draft, spec: Fields) -> None:
    _read_workers(draft, spec, _JAX)


def _read_tensorflow_job(draft: Draft, spec: Fields) -> None:
    _read_workers(draft, spec, _TENSORFLOW)
    spec.drop("enableDynamicWorker", "successPolicy")


def _read_workers(draft: Draft, spec: Fields, framework: _Framework) -> None:
    replicas = spec.section(framework.replicas)
    groups = {}
    for role in framework.roles:
        if (group := _read_group(draft, replicas.section(role), framework.container)) is not None:
            groups[role] = group
    for role, instead in _OTHER_ROLES.items():
        replicas.leave(role, instead)
    replicas.close()
    if not groups:
        roles = [f"a {role}" for role in framework.roles]
        what = f"neither {' nor '.join(roles)}" if len(roles) > 1 else f"no {framework.roles[0]}"
        draft.refuse(replicas.path, f"there is {what} with a container")
        return
    _same_command(draft, replicas.path, groups)
    draft.put("backend", framework.backend, "kind")
    containers = [group.container for group in groups.values()]
    for one in containers[1:]:
        if one.variables != containers[0].variables:
            draft.leave(f"{one.path}.env", "all workers get the variables of the first container")
    _put_workers(draft, spec, replicas.path, [*groups.values()])
    _read_tries(draft, spec, replicas.path, [*groups.values()])


def _read_group(draft: Draft, section: Fields, name: str) -> _Group | None:
    count = section.whole("replicas", least=0)
    policy = section.text("restartPolicy")
    template = section.section("template")
    template.leave("metadata", "workers are no pods")
    container = read_container(draft, template.section("spec"), name)
    template.close()
    section.close()
    return None if container is None else _Group(1 if count is None else count, policy, container)


def _read_tries(draft: Draft, spec: Fields, path: str, groups: list[_Group]) -> None:
    policies = {group.restart for group in groups} - {None}
    if policies == {"Never"}:
        draft.put("retry.limit", 0, f"{path}.restartPolicy")
    read_run_policy(draft, spec.section("runPolicy"))
    if policies & {"ExitCode"} and draft.spec.get("retry", {}).get("limit") != 0:
        # Of Kubeflow's two kinds of codes these are the ones that it retries.
        draft.put("retry.on_exit_codes", ["128-255"], f"{path}.restartPolicy")


def _same_command(draft: Draft, path: str, groups: dict[str, _Group]) -> None:
    """The one command of all workers; each worker learns its rank from its variables."""
    containers = [group.container for group in groups.values()]
    if any(one.command != containers[0].command for one in containers):
        roles = " and ".join(groups)
        draft.refuse(path, f"{roles} have different commands; all workers run the same")
    else:
        _put_command(draft, containers[0])


def _put_command(draft: Draft, container: Container) -> None:
    if container.command is None:
        draft.refuse(
            f"{container.path}.command",
            "missing; what the image would start is not known here, so write it there",
        )
        return
    written = text_of(container.command.written)
    draft.put("command", container.command.words, f"{container.path}.command", shown=written)


def _put_workers(draft: Draft, spec: Fields, path: str, groups: list[_Group]) -> None:
    count = sum(group.count for group in groups)
    elastic = spec.section("elasticPolicy")
    least, most = elastic.whole("minReplicas"), elastic.whole("maxReplicas")
    own = elastic.take("nProcPerNode")
    common = spec.take("nprocPerNode")
    given = own if own is not None else common
    each = int(given) if isinstance(given, str) and given.isascii() and given[:9].isdecimal() else given
    if each is not None and (type(each) is not int or not 1 <= each < MOST):
        draft.leave(
            "spec.nprocPerNode", f"{short(given)} depends on the node: there is one worker for each replica"
        )
        each = None
    each = each or 1
    elastic.leave("metrics", "a job grows whenever there is capacity")
    elastic.leave("maxRestarts", "lost nodes never count, and failures of the code up to retry.limit")
    elastic.drop("rdzvBackend", "rdzvHost", "rdzvPort", "rdzvId", "rdzvConf", "standalone")
    elastic.close()
    workers: Any = max(count, 1) * each
    source = f"{path}.*.replicas"
    if least is not None or most is not None:
        least, most = least or max(count, 1), most or max(count, 1)
        workers, source = {"min": least * each, "max": most * each}, "spec.elasticPolicy"
    draft.put("workers", workers, source)
    read_resources(draft, groups[0].container.resources, each)


def _read_mpi_job(draft: Draft, spec: Fields) -> None:
    """The launcher's command is that of all ranks; the workers say how many there are, and what each needs."""
    implementation = spec.text("mpiImplementation") or "OpenMPI"
    if implementation != "OpenMPI":
        text = (
            f"{implementation[:40]} given, and ranks are started by Open MPI; build the program with Open MPI"
        )
        draft.refuse("spec.mpiImplementation", text)
    slots = spec.whole("slotsPerWorker") or 1
    is_also_worker = spec.take("runLauncherAsWorker") is True
    replicas = spec.section("mpiReplicaSpecs")
    launcher = _read_group(draft, replicas.section("Launcher"), "mpi-launcher")
    worker = _read_group(draft, replicas.section("Worker"), "mpi-worker")
    replicas.close()
    spec.drop("sshAuthMountPath", "launcherCreationPolicy", "cleanPodPolicy", "managedBy")
    if launcher is None:
        draft.refuse(replicas.path, "there is no Launcher with a container")
        return
    container = _without_usual_options(draft, launcher.container)
    _put_command(draft, container)
    draft.put("backend", "mpi", "kind")
    count = 0 if worker is None else worker.count
    _put_ranks(draft, replicas, container, max((count + is_also_worker) * slots, 1))
    if worker is None:
        read_resources(draft, launcher.container.resources, slots)
    else:
        draft.leave(
            launcher.container.path, "the launcher is no process of its own; its resources are not needed"
        )
        read_resources(draft, worker.container.resources, slots)
    _read_tries(draft, spec, replicas.path, [launcher])


def _without_usual_options(draft: Draft, launcher: Container) -> Container:
    """The launcher without `-x NAME`, because every worker has the manifest's variables, and without `-map-by slot`.

    One rank for each slot is what workers are in any case.
    """
    command = launcher.command
    if command is None or PurePath(command.words[0]).name not in ("mpirun", "mpiexec"):
        return launcher
    options, place, dropped = OPTIONS["mpirun"], 1, set[int]()
    while place < len(command.words) and command.words[place].startswith("-"):
        name, _, inside = command.words[place].lstrip("-").partition("=")
        option = options.get(name)
        taken = 1 if option is None or inside else 1 + option.values
        value = inside or "".join(command.words[place + 1 : place + taken])
        if name == "x" and value and "=" not in value and value not in launcher.variables:
            draft.leave(f"{launcher.path}.command", f"-x {value[:80]}: each worker has its node's value")
        if (name == "x" and value and "=" not in value) or (name, value) == ("map-by", "slot"):
            dropped |= set(range(place, place + taken))
        place += taken
    kept = [at for at in range(len(command.words)) if at not in dropped]
    words = Command([command.words[at] for at in kept], [command.written[at] for at in kept])
    return replace(launcher, command=words)


def _put_ranks(draft: Draft, replicas: Fields, launcher: Container, places: int) -> None:
    """As many workers as the launcher starts ranks, else as there are places for them."""
    source, count = f"{replicas.path}.Worker.replicas, slotsPerWorker", places
    if launcher.command is not None:
        try:
            started = unwrap(launcher.command.words)
        except ValueError as error:
            draft.refuse(f"{launcher.path}.command", str(error))
            return
        if started.launcher not in ("mpirun", "horovodrun"):
            text = "it does not begin with mpirun, so that it is not known what each rank runs; write mpirun first"
            draft.refuse(f"{launcher.path}.command", text)
        if started.processes is not None:
            source, count = f"{launcher.path}.command", started.processes[1]
    draft.put("workers", count, source)


#: What reads the section `spec` of a job, by its kind.
REPLICATED: dict[str, Callable[[Draft, Fields], None]] = {
    "PyTorchJob": _read_pytorch_job,
    "JAXJob": _read_jax_job,
    "TFJob": _read_tensorflow_job,
    "MPIJob": _read_mpi_job,
}
