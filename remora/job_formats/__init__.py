"""Jobs that were written for others, as job specifications.  Files that a job names are opened, nothing is asked.

    translation = translate(yaml_of_a_file, folder_of_the_file)

It is None for what is a specification of Remora's own.  `docs/azure-ml.md` says what becomes of every field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from remora.errors import SpecError, SpecProblem
from remora.job_formats import azureml, kubeflow
from remora.job_formats.field_outcomes import Pipeline, Remark, Translation

__all__ = ["Pipeline", "Remark", "Translation", "the_jobs", "translate"]


def translate(
    raw: Mapping[Any, Any] | Sequence[Mapping[Any, Any]],
    folder: Path,
    inputs: Mapping[str, str] | None = None,
) -> Translation | Pipeline | None:
    """Translate a job, a sweep or a pipeline of Azure ML, or Kubeflow manifests; None when `raw` is neither.

    `folder` is the absolute folder that relative paths in `raw` start from; `inputs` gives values of inputs that stand
    above those of the file.  Raises SpecError for a kind of job that has no translation, in one sentence each.
    """
    translation: Translation | Pipeline
    if not isinstance(raw, Mapping):
        translation = kubeflow.translate_all(raw)
    elif azureml.is_azureml(raw):
        translation = azureml.translate(raw, folder, inputs or {})
    elif kubeflow.is_manifest(raw):
        translation = kubeflow.translate(raw)
    else:
        return None
    if translation.problems and isinstance(translation, Translation) and not translation.spec:
        raise SpecError(translation.problems)
    return translation


def the_jobs(documents: Sequence[Any]) -> tuple[Any, tuple[Remark, ...]]:
    """The document of a file that is the job, or a list of several, and what is left out beside them.

    It is None for a file without documents.  Manifests for Kubernetes often have a Service or a ConfigMap beside the
    job.  Raises SpecError for several documents of anything else.
    """
    if len(documents) < 2:
        return (documents[0] if documents else None), ()
    manifests = [one for one in documents if isinstance(one, Mapping) and kubeflow.is_manifest(one)]
    if len(manifests) < len(documents):
        text = f"it holds {len(documents)} documents; write each into a file of its own"
        raise SpecError([SpecProblem("", text)])
    jobs = [one for one in manifests if kubeflow.is_job(one)]
    taken = jobs or manifests[:1]
    beside = [one for one in manifests if not any(one is job for job in taken)]
    found, remarks = kubeflow.with_runtimes(taken, beside)
    return (found if len(found) > 1 else found[0]), remarks
