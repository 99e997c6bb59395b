"""The emulated Azure as a process of the embedded service."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from cluster.azure.settings import AzureSettings
from service.clouds.azure_settings import INSTALL_AZURE
from service.clouds.own_sizes import sizes_of
from service.clouds.place_files import CloudUnusable
from service.embedded.parts import ServicePart, end_nodes, get
from service.embedded.upkeep import Part
from service.settings import Settings

#: Packages that the controller needs for Azure, emulated or not.
_PACKAGES = ("aiohttp", "azure.identity", "azure.keyvault.secrets", "azure.mgmt.compute")


class EmulatorPart(ServicePart):
    """Serves an Azure whose machines are nodes of the local cluster; machines and their state end with it."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings, Part.EMULATOR, "cluster.azure.emulator", port=0)

    @property
    def url(self) -> str:
        """Address of the emulator."""
        return f"http://127.0.0.1:{self._port}"

    def start(self, ray_address: str) -> None:
        """Start it; machines of an emulator that was killed are known to no process any more, and are ended first."""
        end_nodes(self._settings.home)
        write_azure_settings(self._settings.azure, emulated_azure_settings(self.url))
        super().start(ray_address)

    def is_ready(self) -> bool:
        """It answers."""
        return get(f"{self.url}/control/state") is not None

    def where(self) -> str:
        """Its address."""
        return self.url

    def _words(self) -> list[str]:
        words = ["--port", str(self._port), "--home", str(self._settings.home)]
        own = self._settings.catalogue
        return words if own is None else [*words, "--catalogue", str(own.expanduser())]


def emulated_azure_settings(endpoint: str) -> AzureSettings:
    """Settings for nodes in the Azure that the emulator at `endpoint` serves; other ids are names only."""
    # Not above: it brings a web server, which a service without an emulator does not need here.
    from cluster.azure.emulator.server import GROUP, REGION, SUBSCRIPTION

    providers = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/{GROUP}/providers"
    return AzureSettings(
        subscription=SUBSCRIPTION,
        resource_group=GROUP,
        region=REGION,
        cluster="remora",
        subnet=f"{providers}/Microsoft.Network/virtualNetworks/remora/subnets/nodes",
        image=f"{providers}/Microsoft.Compute/galleries/remora/images/node/versions/1.0.0",
        node_identity=f"{providers}/Microsoft.ManagedIdentity/userAssignedIdentities/nodes",
        ssh_public_key="ssh-ed25519 AAAA nobody@emulated",
        endpoint=endpoint,
        # The emulator is the key vault, too.
        vault=endpoint,
    )


def write_azure_settings(path: Path, azure: AzureSettings) -> None:
    """Write the file that `service.clouds.azure_settings` reads, atomically."""
    draft = path.with_suffix(".draft")
    draft.write_text(azure.model_dump_json(indent=2) + "\n")
    draft.replace(path)


def cloud_problem(settings: Settings) -> str | None:
    """Why `remora up` cannot run with nodes in this cloud, as a sentence; None when it can."""
    if settings.cloud == "azure":
        return (
            "machines of Azure cannot join a Ray head on this machine's loopback; for nodes in Azure run the API and"
            " the controller beside a head in their network, as docs/azure.md says, or rehearse with"
            " --cloud azure-emulated"
        )
    if settings.cloud == "existing" and not settings.ray_address:
        return "REMORA_CLOUD is existing, and nothing says where the cluster is: give --ray-address HOST:PORT"
    if settings.cloud == "kuberay":
        return (
            "pods of Kubernetes cannot join a Ray head on this machine's loopback: run the API and the controller"
            " beside them, as docs/kubernetes.md says"
        )
    if settings.cloud == "azure-emulated" and not all(map(_is_installed, _PACKAGES)):
        return f"Azure's packages are missing: install them with {INSTALL_AZURE}"
    if settings.cloud == "azure-emulated":
        try:
            sizes_of(settings)
        except CloudUnusable as error:
            return str(error)
    return None


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False
