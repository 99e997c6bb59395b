"""A `TrainJob` of Kubeflow, completed by its runtime where the file has that.

The schema: https://www.kubeflow.org/docs/components/trainer/
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remora.job_formats.containers import IMAGE_LEFT, read_environment, read_resources, words_of
from remora.job_formats.field_outcomes import Draft, Fields, text_of
from remora.job_formats.kubeflow_policies import read_deadline

#: Word in a runtime's name -> backend; the first that fits.  Flux starts programs of MPI.
_RUNTIMES = (
    ("deepspeed", "deepspeed"),
    ("mpi", "mpi"),
    ("flux", "mpi"),
    ("torch", "ddp"),
    ("tensorflow", "tensorflow"),
    ("jax", "jax"),
)
_FRAMEWORK = "trainer.kubeflow.org/framework"
_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"


def read_train_job(draft: Draft, spec: Fields) -> None:
    """Read the section `spec`."""
    trainer = spec.section("trainer")
    nodes = trainer.whole("numNodes") or 1
    each = trainer.whole("numProcPerNode")
    trainer.leave("image", IMAGE_LEFT)
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
    read_deadline(draft, spec)
    initializer = spec.section("initializer")
    for key, _ in initializer.items():
        draft.leave(initializer.name(key), "nothing is fetched beforehand; let the script open it")
    if spec.take("suspend"):
        draft.leave("spec.suspend", "a job begins as soon as there is capacity")
    spec.leave("runtimePatches", "there is no runtime to patch")
    spec.leave("podTemplateOverrides", "workers are no pods")
    spec.leave("podSpecOverrides", "workers are no pods")
    spec.leave("labels", "a job has none")
    spec.leave("annotations", "a job has none")
    spec.drop("managedBy")


def completed(job: Mapping[Any, Any], runtime: Mapping[Any, Any]) -> dict[Any, Any]:
    """A TrainJob with what its runtime says where it is silent: number of nodes, command, variables, resources."""
    spec, about = _mapping(job, "spec"), _mapping(runtime, "spec")
    policy = _mapping(about, "mlPolicy")
    container = _container(about)
    frameworks = [name for name, _ in _RUNTIMES if name in policy]
    processes = [_mapping(policy, name).get("numProcPerNode") for name in frameworks]
    given: dict[Any, Any] = {
        "numNodes": policy.get("numNodes"),
        "numProcPerNode": next((count for count in processes if type(count) is int), None),
        **{key: container.get(key) for key in ("image", "env", "command", "args")},
        "resourcesPerNode": container.get("resources"),
    }
    trainer = _mapping(spec, "trainer")
    if trainer.get("command") is not None:
        given["args"] = None
    given |= {key: value for key, value in trainer.items() if value is not None}
    if isinstance(ours := trainer.get("env"), list) and isinstance(theirs := container.get("env"), list):
        given["env"] = [*theirs, *ours]
    reference = _mapping(spec, "runtimeRef")
    labels = _mapping(_mapping(runtime, "metadata"), "labels")
    framework = labels.get(_FRAMEWORK) or " ".join(frameworks)
    named = {**reference, "name": f"{reference.get('name')} {framework}".strip()}
    return {**job, "spec": {**spec, "trainer": given, "runtimeRef": named}}


def runtime_of(job: Mapping[Any, Any]) -> tuple[str, object]:
    """Kind and name of the runtime that a TrainJob refers to."""
    reference = _mapping(_mapping(job, "spec"), "runtimeRef")
    return str(reference.get("kind") or "ClusterTrainingRuntime"), reference.get("name")


def _container(about: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The container that trains."""
    jobs = _mapping(_mapping(about, "template"), "spec").get("replicatedJobs")
    for one in jobs if isinstance(jobs, list) else []:
        template = _mapping(one, "template") if isinstance(one, Mapping) else {}
        labels = _mapping(_mapping(template, "metadata"), "labels")
        if labels.get(_STEP, one.get("name") if isinstance(one, Mapping) else None) in ("trainer", "node"):
            pod = _mapping(_mapping(_mapping(template, "spec"), "template"), "spec")
            containers = pod.get("containers")
            for container in containers if isinstance(containers, list) else []:
                if isinstance(container, Mapping):
                    return container
    return {}


def _mapping(value: Mapping[Any, Any], key: str) -> Mapping[Any, Any]:
    found = value.get(key)
    return found if isinstance(found, Mapping) else {}
