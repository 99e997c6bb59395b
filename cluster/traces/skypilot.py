"""Spot availability as SkyPilot's authors publish it: `{"metadata": {"gap_seconds": 300}, "data": [0, 3, 16]}`.

Each number is how many nodes could be had, one number every `gap_seconds`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from cluster.traces.trace import MarketChange, Trace, TraceError

#: The last moment of a trace, seconds since it began, as in our own format.
_LAST_S = 1e10


class _Metadata(BaseModel):
    gap_seconds: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)]


class _File(BaseModel):
    metadata: _Metadata
    data: list[Annotated[int, Field(ge=0, le=1_000_000)]] = Field(min_length=1)


def read_skypilot(text: str, offering: str, name: str = "trace") -> Trace:
    """Changes of one offering, named by its id.  Raises TraceError with the place of the bad number."""
    try:
        file = _File.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise TraceError(f"{name}: {f'{field}: ' if field else ''}{first['msg'].rstrip('.')}") from None
    span_s = len(file.data) * file.metadata.gap_seconds
    if span_s > _LAST_S:
        raise TraceError(
            f"{name}: its {len(file.data)} numbers span {span_s:.4g} s, {_LAST_S:.4g} s are possible"
        )
    changes = []
    before: int | None = None
    for at, nodes in enumerate(file.data):
        if nodes != before:
            changes.append(MarketChange(at_s=at * file.metadata.gap_seconds, offering=offering, nodes=nodes))
        before = nodes
    return Trace(changes=tuple(changes))
