"""Which kind of Kubernetes manifest is given, and what translates it: the training part of Kubeflow's jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remora.job_formats.field_outcomes import Draft, Fields, Pipeline, Remark, Translation, slug
from remora.job_formats.kubeflow_replicas import REPLICATED
from remora.job_formats.kubeflow_trainjob import completed, read_train_job, runtime_of
from remora.spec.pipeline_steps import PipelineStep

#: Other kinds, and what to do instead.
_OTHER_KINDS = {
    "XGBoostJob": "write a specification with the command of its workers",
    "PaddleJob": "write a specification with the command of its workers",
    "OptimizationJob": "submit one job for each set of parameters",
    "TrainingRuntime": "give the TrainJob that refers to it, with a command of its own",
    "ClusterTrainingRuntime": "give the TrainJob that refers to it, with a command of its own",
}


def is_manifest(raw: Mapping[Any, Any]) -> bool:
    """True for a Kubernetes object, which says what it is by `apiVersion` and `kind`."""
    return isinstance(raw.get("apiVersion"), str) and isinstance(raw.get("kind"), str)


def _kind(raw: Mapping[Any, Any]) -> tuple[str, str]:
    """The group of the API and the kind."""
    return str(raw["apiVersion"]).partition("/")[0], str(raw["kind"])


def is_job(raw: Mapping[Any, Any]) -> bool:
    """True for a manifest that has a translation."""
    return _kind(raw) in _READERS


def with_runtimes(
    jobs: Sequence[Mapping[Any, Any]], others: Sequence[Mapping[Any, Any]]
) -> tuple[list[Mapping[Any, Any]], tuple[Remark, ...]]:
    """Jobs with what their runtimes among the other manifests add to each TrainJob, and a remark on each of the others.

    Of two runtimes with one name the last one counts, as where they are applied one after the other.
    """
    runtimes = {(_kind(one)[1], _name(one)): one for one in others}
    found, used = [], set()
    for job in jobs:
        key = runtime_of(job) if _kind(job)[1] == "TrainJob" else None
        if key in runtimes:
            used.add(key)
        found.append(completed(job, runtimes[key]) if key in runtimes else job)
    left = f"only the job{'s' if len(jobs) > 1 else ''} of the file {'are' if len(jobs) > 1 else 'is'} taken"
    taken = "only what it says of the container that trains is taken"
    remarks = (Remark(name_of(one), taken if (_kind(one)[1], _name(one)) in used else left) for one in others)
    return found, tuple(remarks)


def name_of(raw: Mapping[Any, Any]) -> str:
    """A manifest for people: `Service cifar`."""
    name = _name(raw)
    return f"{_kind(raw)[1][:40]} {name[:60]}" if name is not None else _kind(raw)[1][:40]


def _name(raw: Mapping[Any, Any]) -> str | None:
    metadata = raw.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return name if isinstance(name, str) else None


def translate(raw: Mapping[Any, Any]) -> Translation:
    """Translate a manifest; a kind without a translation becomes a problem, and nothing else."""
    return _read(raw).finish()


def _read(raw: Mapping[Any, Any], prefix: str = "") -> Draft:
    kind = _kind(raw)[1]
    read = _READERS.get(_kind(raw))
    if read is None:
        draft = Draft("a Kubernetes manifest", prefix)
        why = _OTHER_KINDS.get(
            kind, "a TrainJob and a PyTorchJob are; write a specification for anything else"
        )
        draft.refuse("kind", f"a manifest of the kind {kind[:40]} is not taken; {why}")
        return draft
    draft = Draft(f"a Kubeflow {kind}", prefix)
    fields = Fields(draft, raw)
    fields.drop("apiVersion", "kind", "status")
    _metadata(draft, fields.section("metadata"))
    spec = fields.section("spec")
    read(draft, spec)
    spec.close()
    fields.close()
    return draft


def translate_all(raws: Sequence[Mapping[Any, Any]]) -> Pipeline:
    """Translate several manifests; each becomes a job, and none waits for another."""
    whole = Draft(f"a file with {len(raws)} Kubeflow jobs")
    steps: list[PipelineStep] = []
    for number, raw in enumerate(raws, start=1):
        name = slug(_name(raw) or "") or f"job-{number}"
        if any(name == step.name for step in steps):
            # Of another kind, or in another namespace.
            name = f"{name[:56]}-{number}"
        draft = _read(raw, prefix=f"{name}.")
        whole.take_notes(draft)
        steps.append(PipelineStep(name=name, spec=draft.spec))
    return whole.finish_pipeline(steps)


def _metadata(draft: Draft, fields: Fields) -> None:
    for key, target in (("name", "name"), ("generateName", "name"), ("namespace", "project")):
        if (text := slug(fields.text(key) or "")) and target not in draft.spec:
            draft.put(target, text, fields.name(key))
    for key in ("labels", "annotations"):
        fields.leave(key, "a job has none")
    fields.close()


#: What translates a job, by the group of its API and its kind.
_READERS = {
    ("trainer.kubeflow.org", "TrainJob"): read_train_job,
    **{("kubeflow.org", kind): read for kind, read in REPLICATED.items()},
}
