"""Take a node of Azure as Azure itself does: by an eviction that it simulates, or without a notice."""

from __future__ import annotations

from typing import Protocol

#: Seconds of notice that Azure gives at most to a machine that it evicts.
NOTICE_S = 30.0


class _Evicting(Protocol):
    """The provider of one place, or of all."""

    def simulate_eviction(self, node_id: str) -> None:
        """Let Azure preempt a spot node."""
        ...

    def delete(self, node_id: str) -> None:
        """End the machine."""
        ...


class AzureRehearsal:
    """Preempts nodes of Azure; any thread may call it."""

    def __init__(self, provider: _Evicting) -> None:
        self._provider = provider

    @property
    def own_notice_s(self) -> float:
        """Azure gives its own notice, within minutes of the request, and takes the machine itself afterwards."""
        return NOTICE_S

    def notify(self, node_id: str, deadline_at: float) -> None:  # noqa: ARG002  # Azure sets it
        """Let Azure evict a spot node with its own notice, which the node's agent hears and drains it for.

        `deadline_at` cannot be kept: Azure begins when it likes, usually within minutes, and gives up to 30 s.  Raises
        InvalidRequest for a node that is not there or not spot, Unauthorized while the controller lacks the role for
        it, and ProviderError.
        """
        self._provider.simulate_eviction(node_id)

    def take(self, node_id: str) -> None:
        """Have the machine deleted at once; fine when it is gone.  Raises ProviderError."""
        self._provider.delete(node_id)
