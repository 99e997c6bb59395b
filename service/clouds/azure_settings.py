"""Reads where in Azure the nodes are created, from the file that `REMORA_AZURE_FILE` names."""

from __future__ import annotations

from collections.abc import Iterable

from cluster.azure.place_names import without_place
from cluster.azure.settings import AzureSettings
from remora.installation import install_command
from service.clouds.place_files import CloudUnusable, read_place
from service.settings import Settings

#: How to install Azure's packages.
INSTALL_AZURE = install_command("azure")


def require_places(settings: Settings, offerings: Iterable[str]) -> None:
    """Raise CloudUnusable where nodes that have not ended, bought as these offerings, are in a place that is not known.

    They would be taken for ended and cost money on.
    """
    if settings.cloud not in ("azure", "azure-emulated"):
        return
    known = read_azure_settings(settings).by_place()
    missing = sorted({place for one in offerings if (place := without_place(one)[1]) not in known})
    if missing:
        raise CloudUnusable(
            f"{settings.azure} has no place {', '.join(missing)} any more, where nodes of this cluster still are: put"
            " it back until they have ended, and let pools buy nothing there meanwhile"
        )


def read_azure_settings(settings: Settings) -> AzureSettings:
    """The settings in the file `settings.azure`, YAML or JSON.  Raises CloudUnusable when they cannot be read."""
    path = settings.azure
    missing = (
        f"there is no file {path} that says where in Azure the nodes stand: write it as docs/azure.md says, or name"
        " another one in REMORA_AZURE_FILE"
    )
    return read_place(path, AzureSettings, missing)
