"""Which kind of Kubernetes manifest is given, and what translates it: the training part of Kubeflow's jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remora.foreign.field_outcomes import Draft, Fields, Remark, Translation, slug
from remora.foreign.kubeflow_replicas import REPLICATED
from remora.foreign.kubeflow_trainjob import completed, read_train_job, runtime_of

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


def with_runtime(
    job: Mapping[Any, Any], others: Sequence[Mapping[Any, Any]]
) -> tuple[Mapping[Any, Any], tuple[Remark, ...]]:
    """A TrainJob with what its runtime among the other manifests adds to it, and a remark on each of the others."""
    remarks = []
    for one in others:
        metadata = one.get("metadata")
        name = metadata.get("name") if isinstance(metadata, Mapping) else None
        if _kind(job)[1] == "TrainJob" and (_kind(one)[1], name) == runtime_of(job):
            job = completed(job, one)
            remarks.append(Remark(name_of(one), "only what it says of the container that trains is taken"))
        else:
            remarks.append(Remark(name_of(one), "only the job of the file is taken"))
    return job, tuple(remarks)


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


#: What translates a job, by the group of its API and its kind.
_READERS = {
    ("trainer.kubeflow.org", "TrainJob"): read_train_job,
    **{("kubeflow.org", kind): read for kind, read in REPLICATED.items()},
}
