"""Where in Azure the nodes of a cluster stand: names and ids, no secret (pure)."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, model_validator

#: An ARM id, `/subscriptions/...`.
ResourceId = Annotated[str, Field(pattern=r"^/subscriptions/[^/]+/resourceGroups/[^/]+/providers/.+[^/]$")]


#: Name of a further place, by which pools ask for it.
PlaceName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,19}$")]
#: Further places that one cluster may have.
MOST_PLACES = 16


class PlaceSettings(BaseModel):
    """Another region or subscription for nodes of the same cluster; what it does not say is as in the first place."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    region: str = Field(pattern=r"^[a-z0-9]+$")
    #: Resource group of the nodes there, and of nothing else: not that of another place.
    resource_group: str = Field(min_length=1, max_length=90)
    #: Subnet there, from which the head is reached.
    subnet: ResourceId
    subscription: str | None = Field(default=None, min_length=1)
    #: A version of the image that is replicated to the region.
    image: ResourceId | None = None
    network_security_group: ResourceId | None = None
    node_identity: ResourceId | None = None
    node_identity_client_id: str | None = None
    max_spot_price: float | None = None
    endpoint: str | None = None


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
    #: GiB of the disk of the operating system; it lies on the machine itself where that has the capacity.
    disk_gb: int = Field(default=128, ge=30, le=2048)
    #: USD per hour above which spot machines are not bought and are taken back; -1 means the on-demand price.
    max_spot_price: float = -1.0
    #: Endpoint of Azure Resource Manager; another one in sovereign clouds and for the emulator.
    endpoint: str = "https://management.azure.com"
    #: Further places, by names of the operator's choice.
    places: dict[PlaceName, PlaceSettings] = Field(default={}, max_length=MOST_PLACES)

    @model_validator(mode="after")
    def _are_apart(self) -> AzureSettings:
        groups = [(one.subscription.lower(), one.resource_group.lower()) for one in self.by_place().values()]
        if len(set(groups)) < len(groups):
            raise ValueError(
                "two places have the same resource group; machines there would be taken for both's"
            )
        return self

    def by_place(self) -> dict[str, AzureSettings]:
        """The settings of each place, the first one under an empty name."""
        return {"": self} | {
            name: self.model_copy(update={"places": {}, **place.model_dump(exclude_none=True)})
            for name, place in self.places.items()
        }

    @property
    def group_id(self) -> str:
        """Id of the resource group."""
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.resource_group}"
