"""How many more requests Azure allows now, from the rate limit headers of its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import SansIOHTTPPolicy

#: Below this number the allowance is low: at most 250 reads of a subscription accumulate, and 900 lists of machines.
FEW = 50
#: Seconds for which a word of Azure counts: meanwhile it has given more than a thousand new ones.
GOOD_FOR_S = 60.0

_READS = "x-ms-ratelimit-remaining-subscription-reads"
_RESOURCE = "x-ms-ratelimit-remaining-resource"
#: Lists of machines and of scale sets; other questions are counted by the machine that they are about.
_LISTS = "highcostget"


def left_of(headers: Mapping[str, str]) -> dict[str, int]:
    """How many are left of each kind that looks are made of, as the headers of one answer tell it (pure)."""
    found: dict[str, str] = {}
    for header, value in headers.items():
        if header.lower() == _READS:
            found[_READS] = value
        elif header.lower() == _RESOURCE:
            # Microsoft.Compute/HighCostGet3Min;159,Microsoft.Compute/HighCostGet30Min;799
            for one in value.split(","):
                name, _, number = one.strip().rpartition(";")
                if name.rpartition("/")[2].lower().startswith(_LISTS):
                    found[name] = number
    return {name: int(number) for name, number in found.items() if number.isascii() and number.isdigit()}


class Allowance(SansIOHTTPPolicy[Any, Any]):
    """Remembers the limits in the last answers; a policy of a client's pipeline, for one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        #: By kind, with the time of the answer.
        self._left: dict[str, tuple[int, float]] = {}

    def on_response(self, request: PipelineRequest[Any], response: PipelineResponse[Any, Any]) -> None:  # noqa: ARG002
        """Read the headers of an answer."""
        now = self._clock()
        self._left |= {name: (left, now) for name, left in left_of(response.http_response.headers).items()}

    def is_low(self) -> bool:
        """Azure reported lately that it allows only few more requests; any thread may call it."""
        now = self._clock()
        return any(left < FEW and 0.0 <= now - at < GOOD_FOR_S for left, at in dict(self._left).values())
