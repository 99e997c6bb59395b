"""Where in Kubernetes the nodes of a cluster stand, and as what they can be bought: names, no secret (pure)."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from cluster.policies.offerings import CapacityType, Offering

#: A name of Kubernetes that may be part of others, such as a pod's.
Name = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9-]{0,48}[a-z0-9])?$")]
#: Where a pod finds what its service account may show.
_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"


class WorkerGroup(BaseModel):
    """A worker group of the RayCluster, as which nodes can be bought."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    #: Its `groupName`; policies name it as a size.
    name: Name
    #: What its pods' machines are: the cloud takes back those of `spot`.
    capacity: CapacityType
    #: Zone in which its node pool stands; None: in any.
    zone: str | None = Field(default=None, pattern=r"^[A-Za-z0-9._-]{1,60}$")
    #: Ray resources of one pod, e.g. `{"CPU": 4, "GPU": 1}`.
    resources: dict[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = Field(min_length=1)
    #: USD for an hour of one pod.
    price_per_hour: float = Field(ge=0, allow_inf_nan=False)
    #: Chance that a pod of spot is taken within an hour.
    evictions_per_hour: float = Field(default=0.05, ge=0, le=1)

    @property
    def offering(self) -> Offering:
        """The same as one line of a catalogue."""
        is_spot = self.capacity is CapacityType.SPOT
        return Offering(
            size=self.name,
            zone=self.zone,
            capacity=self.capacity,
            resources=dict(self.resources),
            price_per_hour=self.price_per_hour,
            evictions_per_hour=self.evictions_per_hour if is_spot else 0.0,
        )


def _distinct(groups: tuple[WorkerGroup, ...]) -> tuple[WorkerGroup, ...]:
    if len({group.name for group in groups}) < len(groups):
        raise ValueError("a group stands there twice")
    return groups


class KubeRaySettings(BaseModel):
    """One cluster's place in Kubernetes; `pydantic.ValidationError` names every line that is wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    namespace: Name
    #: Name of the RayCluster; it exists.
    cluster: Name
    groups: Annotated[tuple[WorkerGroup, ...], AfterValidator(_distinct)] = Field(
        min_length=1, max_length=100
    )
    #: The API server; without TLS on the loopback alone, as of `kubectl proxy`.
    endpoint: str = Field(
        default="https://kubernetes.default.svc", pattern=r"^(https://[^/]+|http://127\.[0-9.]+(:[0-9]+)?)$"
    )
    #: File with the token that requests show; Kubernetes replaces it within the hour, so it is read each time.
    token_file: str = f"{_ACCOUNT}/token"
    #: File with the authority of the API server's certificate.
    authority_file: str = f"{_ACCOUNT}/ca.crt"
    #: Seconds for which a pod may wait for a machine before its group counts as sold out.  The autoscaler of a node
    #: pool takes minutes to add a machine with GPUs.
    patience_s: float = Field(default=900.0, ge=1, le=86_400)

    def group(self, name: str) -> WorkerGroup | None:
        """The group of this name; None: there is none."""
        return next((group for group in self.groups if group.name == name), None)

    def offering_id(self, name: str) -> str:
        """Id of the offering as which a group is bought; the group's own name where the settings lack it."""
        group = self.group(name)
        return group.offering.id if group is not None else name
