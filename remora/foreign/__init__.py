"""Jobs that were written for others, as job specifications.  Pure: nothing is opened, nothing is asked.

    translation = translate(yaml_of_a_file, folder_of_the_file)

It is None for what is a specification of Remora's own.  `docs/azure-ml.md` says what becomes of every field.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remora.errors import SpecError
from remora.foreign import azureml, kubeflow
from remora.foreign.translation import Remark, Translation

__all__ = ["Remark", "Translation", "translate"]


def translate(
    raw: Mapping[Any, Any], folder: Path, inputs: Mapping[str, str] | None = None
) -> Translation | None:
    """Translate an Azure ML command job or a Kubeflow manifest; None when `raw` is neither.

    `folder` is the absolute folder that relative paths in `raw` start from; `inputs` gives values of inputs that stand
    above those of the file.  Raises SpecError for a kind of job that has no translation, in one sentence each.
    """
    if azureml.is_azureml(raw):
        translation = azureml.translate(raw, folder, inputs or {})
    elif kubeflow.is_manifest(raw):
        translation = kubeflow.translate(raw)
    else:
        return None
    if translation.problems and not translation.spec:
        raise SpecError(translation.problems)
    return translation
