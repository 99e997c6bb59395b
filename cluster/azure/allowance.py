"""How many more questions Azure would answer now, as it tells with every answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from azure.core.pipeline import PipelineRequest, PipelineResponse
from azure.core.pipeline.policies import SansIOHTTPPolicy

#: Fewer than so many are few: Azure lets 250 gather for a subscription, and 900 lists of machines.
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
    for header, told in headers.items():
        if header.lower() == _READS:
            found[_READS] = told
        elif header.lower() == _RESOURCE:
            # Microsoft.Compute/HighCostGet3Min;159,Microsoft.Compute/HighCostGet30Min;799
            for one in told.split(","):
                name, _, number = one.strip().rpartition(";")
                if name.rpartition("/")[2].lower().startswith(_LISTS):
                    found[name] = number
    return {name: int(number) for name, number in found.items() if number.isascii() and number.isdigit()}


class Allowance(SansIOHTTPPolicy[Any, Any]):
    """Remembers what the last answers told; a part of a client's pipeline, for one event loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__()
        self._clock = clock
        #: By kind, with the time at which it was told.
        self._left: dict[str, tuple[int, float]] = {}

    def on_response(self, request: PipelineRequest[Any], response: PipelineResponse[Any, Any]) -> None:  # noqa: ARG002
        """Read the headers of an answer."""
        now = self._clock()
        self._left |= {name: (left, now) for name, left in left_of(response.http_response.headers).items()}

    def is_low(self) -> bool:
        """Azure has told lately that it will answer only few more questions; any thread may ask."""
        now = self._clock()
        return any(left < FEW and 0.0 <= now - at < GOOD_FOR_S for left, at in dict(self._left).values())
