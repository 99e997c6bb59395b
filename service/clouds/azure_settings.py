"""Reads where in Azure the nodes are created, from the file that `REMORA_AZURE_FILE` names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from cluster.azure.settings import AzureSettings
from remora.installation import install_command
from service.settings import Settings

#: How to install Azure's packages.
INSTALL_AZURE = install_command("azure")


class CloudUnusable(Exception):
    """Nodes cannot be created in the configured cloud; the message is one sentence that says what to do."""


def read_azure_settings(settings: Settings) -> AzureSettings:
    """The settings in the file `settings.azure`, YAML or JSON.  Raises CloudUnusable when they cannot be read."""
    path = settings.azure
    document = _document(path)
    try:
        return AzureSettings.model_validate(document)
    except ValidationError as error:
        problems = (_problem(one["loc"], one["msg"]) for one in error.errors(include_url=False))
        raise CloudUnusable(f"correct the file {path}: {'; '.join(problems)}") from error


def _document(path: Path) -> dict[str, Any]:
    try:
        document = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise CloudUnusable(
            f"there is no file {path} that says where in Azure the nodes stand: write it as docs/azure.md says, or name"
            " another one in REMORA_AZURE_FILE"
        ) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())[:300]
        raise CloudUnusable(f"the file {path} cannot be read, correct it: {said}") from error
    if not isinstance(document, dict):
        raise CloudUnusable(f"correct the file {path}: it is no mapping of names to values")
    return document


def _problem(place: tuple[int | str, ...], said: str) -> str:
    return f"{'.'.join(map(str, place))}: {said}"
