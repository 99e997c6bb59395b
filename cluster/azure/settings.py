"""Where in Azure the nodes of a cluster stand: names and ids, no secret (pure)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

#: An ARM id, `/subscriptions/...`.
ResourceId = Annotated[str, Field(pattern=r"^/subscriptions/[^/]+/resourceGroups/[^/]+/providers/.+[^/]$")]


class AzureSettings(BaseModel):
    """One cluster's place in Azure; `pydantic.ValidationError` names every line that is wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    subscription: str = Field(min_length=1)
    #: Resource group of the nodes and of nothing else; it exists.
    resource_group: str = Field(min_length=1, max_length=90)
    #: E.g. `eastus`.
    region: str = Field(pattern=r"^[a-z0-9]+$")
    #: Name of the cluster: part of machines' names, and the tag that says whose they are.
    cluster: str = Field(pattern=r"^[a-z][a-z0-9-]{0,19}$")
    #: Subnet of the nodes; it needs a way out, such as a NAT gateway.
    subnet: ResourceId
    #: Image with driver, Ray and the node's service; a version of a gallery image.
    image: ResourceId
    network_security_group: ResourceId | None = None
    #: Identity that the nodes have: it may read secrets and write checkpoints, and may not make machines.
    node_identity: ResourceId
    #: Client id of the same identity, which the node asks for tokens with; None: the only one that it has.
    node_identity_client_id: str | None = None
    #: Key vault with the cluster's secret, e.g. `https://remora.vault.azure.net`; without TLS on the loopback alone.
    vault: str = Field(pattern=r"^(https://[^/]|http://127\.)")
    #: Nodes join with certificates; the service says it, whatever the file has.
    ray_tls: bool = False
    #: Client id of the controller's own identity; None: the only one that its machine has.
    controller_client_id: str | None = None
    #: The controller uses the login on its machine, such as by `az login`: for trying things out.
    developer_login: bool = False
    ssh_public_key: str = Field(pattern=r"^(ssh|ecdsa)-\S+ \S+")
    #: GiB of the disk of the operating system; it lies on the machine itself where that has the room.
    disk_gb: int = Field(default=128, ge=30, le=2048)
    #: USD per hour above which spot machines are not bought and are taken back; -1 means the on-demand price.
    max_spot_price: float = -1.0
    #: Endpoint of Azure Resource Manager; another one in sovereign clouds and for the emulator.
    endpoint: str = "https://management.azure.com"

    @property
    def group_id(self) -> str:
        """Id of the resource group."""
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"
