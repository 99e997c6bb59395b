"""How many questions are left, out of the headers of Azure's answers."""

from __future__ import annotations

import pytest

from cluster.azure.wire import left_of

RESOURCE = "x-ms-ratelimit-remaining-resource"


@pytest.mark.parametrize(
    ("headers", "left"),
    [
        ({"X-MS-RateLimit-Remaining-Subscription-Reads": "249"}, [249]),
        (
            {RESOURCE: "Microsoft.Compute/HighCostGet3Min;107,Microsoft.Compute/HighCostGet30Min;827"},
            [107, 827],
        ),
        ({RESOURCE: "Microsoft.Compute/HighCostGetVMScaleSet3Min;3"}, [3]),
        # Counted by the machine that was asked about.
        ({RESOURCE: "Microsoft.Compute/GetOperation3Min;14"}, []),
        ({"x-ms-ratelimit-remaining-subscription-writes": "1"}, []),
        ({RESOURCE: "", "x-ms-ratelimit-remaining-subscription-reads": "many"}, []),
        ({RESOURCE: "HighCostGet;-1, ;;, HighCostGet"}, []),
        ({"Content-Type": "application/json"}, []),
    ],
)
def test_what_is_left_of_what_looks_are_made_of(headers: dict[str, str], left: list[int]) -> None:
    assert list(left_of(headers).values()) == left
