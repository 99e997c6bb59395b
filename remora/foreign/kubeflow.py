"""Kubeflow's `TrainJob` and `PyTorchJob` manifests as job specifications: their training part.

The schemas: https://www.kubeflow.org/docs/components/trainer/ and its v1, the training operator.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remora.foreign.containers import Container, read_container, read_environment, read_resources, words_of
from remora.foreign.translation import MOST, Draft, Fields, Translation, slug, text_of
from remora.spec.problems import short

#: Other kinds, and what to do instead.
_OTHER_KINDS = {
    "TFJob": "write a specification with `backend: tensorflow`",
    "MPIJob": "write a specification with `backend: mpi`",
    "XGBoostJob": "write a specification with the command of its workers",
    "PaddleJob": "write a specification with the command of its workers",
    "JAXJob": "write a specification with `backend: jax`",
    "OptimizationJob": "submit one job for each set of parameters",
    "TrainingRuntime": "give the TrainJob that refers to it, with a command of its own",
    "ClusterTrainingRuntime": "give the TrainJob that refers to it, with a command of its own",
}
#: Word in a runtime's name -> backend; the first that fits.
_RUNTIMES = (("deepspeed", "deepspeed"), ("mpi", "mpi"), ("torch", "ddp"))


def is_manifest(raw: Mapping[Any, Any]) -> bool:
    """True for a Kubernetes object, which says what it is by `apiVersion` and `kind`."""
    return isinstance(raw.get("apiVersion"), str) and isinstance(raw.get("kind"), str)


def _kind(raw: Mapping[Any, Any]) -> tuple[str, str]:
    """The group of the API and the kind."""
    return str(raw["apiVersion"]).partition("/")[0], str(raw["kind"])


def is_job(raw: Mapping[Any, Any]) -> bool:
    """True for a manifest that has a translation."""
    return _kind(raw) in _READERS


def name_of(raw: Mapping[Any, Any]) -> str:
    """A manifest for people: `Service cifar`."""
    metadata = raw.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return f"{_kind(raw)[1][:40]} {name[:60]}" if isinstance(name, str) else _kind(raw)[1][:40]


def translate(raw: Mapping[Any, Any]) -> Translation:
    """Translate a manifest; a kind without a translation becomes a problem, and nothing else."""
    kind = _kind(raw)[1]
    read = _READERS.get(_kind(raw))
    if read is None:
        draft = Draft("a Kubernetes manifest")
        why = _OTHER_KINDS.get(
            kind, "a TrainJob and a PyTorchJob are; write a specification for anything else"
        )
        draft.refuse("kind", f"a manifest of the kind {kind[:40]} is not taken; {why}")
        return draft.finish()
    draft = Draft(f"a Kubeflow {kind}")
    fields = Fields(draft, raw)
    fields.drop("apiVersion", "kind", "status")
    _metadata(draft, fields.section("metadata"))
    spec = fields.section("spec")
    read(draft, spec)
    spec.close()
    fields.close()
    return draft.finish()


def _metadata(draft: Draft, fields: Fields) -> None:
    for key, target in (("name", "name"), ("generateName", "name"), ("namespace", "project")):
        if (text := slug(fields.text(key) or "")) and target not in draft.spec:
            draft.put(target, text, fields.name(key))
    for key in ("labels", "annotations"):
        fields.leave(key, "a job has none")
    fields.close()


def _train_job(draft: Draft, spec: Fields) -> None:
    trainer = spec.section("trainer")
    nodes = trainer.whole("numNodes") or 1
    each = trainer.whole("numProcPerNode")
    trainer.leave(
        "image", "workers run without an image; install what it holds on the nodes, give its code by --code"
    )
    environment = read_environment(draft, trainer)
    command = words_of(draft, trainer, environment)
    if command is None:
        draft.refuse(
            trainer.name("command"),
            "missing; what the runtime would start is not known here, so write it there",
        )
    else:
        draft.put("command", command.words, trainer.name("command"), shown=text_of(command.written))
    runtime = spec.section("runtimeRef")
    name = (runtime.text("name") or "").lower()
    runtime.drop("apiGroup", "kind")
    runtime.close()
    backend = next((backend for word, backend in _RUNTIMES if word in name), None)
    draft.put("backend", backend or "ddp", runtime.name("name"))
    if backend is None:
        draft.leave(runtime.name("name"), f"what the runtime {name[:60]!r} sets up is not known here")
    draft.put("workers", nodes * (each or 1), f"{trainer.path}.numNodes, numProcPerNode")
    read_resources(draft, trainer.section("resourcesPerNode"), each or 1)
    trainer.close()
    _deadline(draft, spec)
    initializer = spec.section("initializer")
    for key, _ in initializer.items():
        draft.leave(initializer.name(key), "nothing is fetched beforehand; let the script open it")
    if spec.take("suspend"):
        draft.leave("spec.suspend", "a job begins as soon as there is room")
    spec.leave("runtimePatches", "there is no runtime to patch")
    spec.leave("podTemplateOverrides", "workers are no pods")
    spec.leave("podSpecOverrides", "workers are no pods")
    spec.leave("labels", "a job has none")
    spec.leave("annotations", "a job has none")
    spec.drop("managedBy")


def _deadline(draft: Draft, fields: Fields) -> None:
    seconds = fields.whole("activeDeadlineSeconds")
    if seconds is not None:
        draft.put("limits.run_time", seconds, fields.name("activeDeadlineSeconds"), shown=f"{seconds} s")


def _pytorch_job(draft: Draft, spec: Fields) -> None:
    replicas = spec.section("pytorchReplicaSpecs")
    groups = {}
    for role in ("Master", "Worker"):
        section = replicas.section(role)
        count = section.whole("replicas", least=0)
        policy = section.text("restartPolicy")
        template = section.section("template")
        template.leave("metadata", "workers are no pods")
        container = read_container(draft, template.section("spec"), "pytorch")
        template.close()
        section.close()
        if container is not None:
            groups[role] = (1 if count is None else count, policy, container)
    replicas.close()
    if not groups:
        draft.refuse(replicas.path, "there is neither a Master nor a Worker with a container")
        return
    _same_command(draft, groups)
    _pytorch_workers(draft, spec, groups)
    policies = {policy for _, policy, _ in groups.values()} - {None}
    if policies == {"Never"}:
        draft.put("retry.limit", 0, f"{replicas.path}.restartPolicy")
    _run_policy(draft, spec.section("runPolicy"))
    if policies & {"ExitCode"} and draft.spec.get("retry", {}).get("limit") != 0:
        # Of Kubeflow's two kinds of codes these are the ones that it retries.
        draft.put("retry.on_exit_codes", ["128-255"], f"{replicas.path}.restartPolicy")


def _same_command(draft: Draft, groups: dict[str, tuple[int, str | None, Container]]) -> None:
    """The one command of all workers, with its variables; each worker learns its rank from RANK."""
    containers = [container for _, _, container in groups.values()]
    first = containers[0]
    if any(one.command != first.command for one in containers):
        draft.refuse(
            "spec.pytorchReplicaSpecs", "Master and Worker have different commands; all workers run the same"
        )
    elif first.command is None:
        draft.refuse(
            f"{first.path}.command",
            "missing; what the image would start is not known here, so write it there",
        )
    else:
        written = text_of(first.command.written)
        draft.put("command", first.command.words, f"{first.path}.command", shown=written)
    draft.put("backend", "ddp", "kind")
    for one in containers[1:]:
        if one.variables != first.variables:
            draft.leave(f"{one.path}.env", "all workers get the variables of the first container")


def _pytorch_workers(
    draft: Draft, spec: Fields, groups: dict[str, tuple[int, str | None, Container]]
) -> None:
    count = sum(number for number, _, _ in groups.values())
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
    elastic.leave("metrics", "a job grows whenever there is room")
    elastic.leave("maxRestarts", "lost nodes never count, and failures of the code up to retry.limit")
    elastic.drop("rdzvBackend", "rdzvHost", "rdzvPort", "rdzvId", "rdzvConf", "standalone")
    elastic.close()
    workers: Any = max(count, 1) * each
    source = "spec.pytorchReplicaSpecs.*.replicas"
    if least is not None or most is not None:
        least, most = least or max(count, 1), most or max(count, 1)
        workers, source = {"min": least * each, "max": most * each}, "spec.elasticPolicy"
    draft.put("workers", workers, source)
    first = next(iter(groups.values()))[2]
    read_resources(draft, first.resources, each)


def _run_policy(draft: Draft, policy: Fields) -> None:
    _deadline(draft, policy)
    tries = policy.whole("backoffLimit", least=0)
    if tries is not None:
        draft.put("retry.limit", min(tries, 100), policy.name("backoffLimit"))
    policy.drop("cleanPodPolicy", "ttlSecondsAfterFinished", "managedBy")
    if policy.take("suspend"):
        draft.leave("spec.runPolicy.suspend", "a job begins as soon as there is room")
    policy.leave("schedulingPolicy", "all workers of a job start together; `priority` orders the queue")
    policy.close()


#: What translates a job, by the group of its API and its kind.
_READERS = {("trainer.kubeflow.org", "TrainJob"): _train_job, ("kubeflow.org", "PyTorchJob"): _pytorch_job}
