"""One provider and one supply for several places of Azure: regions or subscriptions, each with its own of both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from cluster.azure.place_names import at_place, sold_at, without_place
from cluster.azure.provider import AzureProvider
from cluster.policies.offerings import Offering
from cluster.provider import InsufficientCapacity, InvalidRequest, NodeRequest, ProvidedNode, ProviderError


class PlaceSupply(Protocol):
    """What one place sells, as `service.interfaces.Supply`, with an end."""

    def offerings(self) -> tuple[Offering, ...]:
        """Everything that is sold there."""
        ...

    def quota_left(self) -> Mapping[str, int]:
        """Units left by quota name in lower case."""
        ...

    def quota_limits(self) -> Mapping[str, int]:
        """Units in all by quota name in lower case."""
        ...

    def close(self) -> None:
        """Stop reading."""
        ...


class PlacesProvider:
    """`cluster.provider.Provider` of machines in several places; any thread may call it."""

    def __init__(self, providers: Mapping[str, AzureProvider]) -> None:
        self._providers = dict(providers)
        #: In which place each node was last seen or asked for.
        self._where: dict[str, str] = {}

    def create(self, request: NodeRequest) -> None:
        """Ask the place of the offering.  Raises what its provider raises, about offerings by their names here."""
        offering, place = without_place(request.offering or "")
        provider = self._providers.get(place)
        if provider is None:
            raise InvalidRequest(f"there is no place {place[:80]!r} in the file of Azure; it was taken out")
        self._where[request.node_id] = place
        try:
            provider.create(replace(request, offering=offering or None))
        except ProviderError as error:
            raise _named(error, place) from error

    def list(self) -> list[ProvidedNode]:
        """The machines of all places.  Raises when any place does not answer: it is not known what is there."""
        found = {place: provider.list() for place, provider in self._providers.items()}
        self._where = {node.node_id: place for place, nodes in found.items() for node in nodes}
        return [_refused_by_name(node, place) for place, nodes in found.items() for node in nodes]

    def delete(self, node_id: str) -> None:
        """End the machine in its place, or wherever it is when that is not known."""
        for provider in self._of(node_id):
            provider.delete(node_id)

    def simulate_eviction(self, node_id: str) -> None:
        """Let Azure preempt a spot node.  Raises InvalidRequest for a node that is not there or not spot."""
        for provider in self._of(node_id):
            provider.simulate_eviction(node_id)

    def is_allowance_low(self) -> bool:
        """One of the subscriptions reported lately that it allows only few more requests."""
        return any(provider.is_allowance_low() for provider in self._providers.values())

    def close(self) -> None:
        """Close all connections; machines live on."""
        for provider in self._providers.values():
            provider.close()

    def _of(self, node_id: str) -> Sequence[AzureProvider]:
        place = self._where.get(node_id)
        return [self._providers[place]] if place in self._providers else list(self._providers.values())


class PlacesSupply:
    """`service.interfaces.Supply` of several places."""

    def __init__(self, supplies: Mapping[str, PlaceSupply]) -> None:
        self._supplies = dict(supplies)

    def offerings(self) -> tuple[Offering, ...]:
        """Everything that is sold, by the names that the planner has for it."""
        return tuple(
            one for place, supply in self._supplies.items() for one in sold_at(supply.offerings(), place)
        )

    def quota_left(self) -> Mapping[str, int]:
        """Units left of each place's quotas."""
        return {
            at_place(name, place): units
            for place, supply in self._supplies.items()
            for name, units in supply.quota_left().items()
        }

    def quota_limits(self) -> Mapping[str, int]:
        """Units in all of each place's quotas."""
        return {
            at_place(name, place): units
            for place, supply in self._supplies.items()
            for name, units in supply.quota_limits().items()
        }

    def close(self) -> None:
        """Stop reading."""
        for supply in self._supplies.values():
            supply.close()


def _named(error: ProviderError, place: str) -> ProviderError:
    """The same error about offerings by their names here."""
    error.closes = tuple(at_place(one, place) for one in error.closes)
    if isinstance(error, InsufficientCapacity):
        error.offering = at_place(error.offering, place)
    return error


def _refused_by_name(node: ProvidedNode, place: str) -> ProvidedNode:
    if node.refusal is None or not place:
        return node
    if any(without_place(one)[1] for one in node.refusal.closes):
        return node  # named at an earlier look: the provider shows the same error again
    return replace(node, refusal=_named(node.refusal, place))
