"""Reads where in Azure the nodes are created, from the file that `REMORA_AZURE_FILE` names."""

from __future__ import annotations

from cluster.azure.settings import AzureSettings
from remora.installation import install_command
from service.clouds.place_files import read_place
from service.settings import Settings

#: How to install Azure's packages.
INSTALL_AZURE = install_command("azure")


def read_azure_settings(settings: Settings) -> AzureSettings:
    """The settings in the file `settings.azure`, YAML or JSON.  Raises CloudUnusable when they cannot be read."""
    path = settings.azure
    missing = (
        f"there is no file {path} that says where in Azure the nodes stand: write it as docs/azure.md says, or name"
        " another one in REMORA_AZURE_FILE"
    )
    return read_place(path, AzureSettings, missing)
