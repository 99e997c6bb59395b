"""The list of retail prices as Azure gives it: by pages, without a token, and with prices that are not used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cluster.azure.catalogue import Size
from cluster.azure.emulator.books import price_of
from cluster.azure.emulator.faults import EmulatorFaults, FaultPoint

_PAGE = 20


def route(faults: EmulatorFaults, region: str, sizes: Mapping[str, Size]) -> Route:
    """GET /api/retail/prices"""

    async def answer(request: Request) -> Response:
        fault = faults.take(FaultPoint.PRICES)
        if fault is not None and fault.body is not None:
            return Response(fault.body, fault.status, media_type="application/json")
        if fault is not None:
            return JSONResponse({"error": fault.message}, status_code=fault.status)
        if f"armRegionName eq '{region}'" not in request.query_params.get("$filter", ""):
            return JSONResponse({"Items": [], "NextPageLink": None, "Count": 0})
        skip = int(request.query_params.get("$skip", "0"))
        items = [item for size in sizes.values() for item in _items(size)]
        is_last = skip + _PAGE >= len(items)
        following = None if is_last else str(request.url.include_query_params(**{"$skip": str(skip + _PAGE)}))
        page = items[skip : skip + _PAGE]
        return JSONResponse({"Items": page, "NextPageLink": following, "Count": len(page)})

    return Route("/api/retail/prices", answer)


def _items(size: Size) -> list[dict[str, Any]]:
    on_demand, spot = price_of(size, "on-demand"), price_of(size, "spot")
    kinds = [
        ("", "", on_demand),
        (" Spot", "", spot),
        (" Low Priority", "", 0.9 * on_demand),
    ]
    kinds.append(("", " Windows", 1.5 * on_demand))
    return [
        {
            "currencyCode": "USD",
            "retailPrice": price,
            "armSkuName": size.name,
            "meterName": f"{size.name.removeprefix('Standard_')}{meter}",
            "productName": f"Virtual Machines{product}",
            "unitOfMeasure": "1 Hour",
            "type": "Consumption",
        }
        for meter, product, price in kinds
    ]
