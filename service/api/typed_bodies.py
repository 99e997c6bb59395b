"""Small JSON bodies, checked by a model: one problem for each field."""

from __future__ import annotations

from typing import Any, TypeVar

from fastapi import Request
from pydantic import BaseModel, ConfigDict, ValidationError

from remora.views import FieldProblem
from service.api.bodies import read_object
from service.api.context import context_of
from service.api.problem_documents import ApiProblem

BodyT = TypeVar("BodyT", bound="Body")

#: Bytes of a body, and values in it.
MAX_BYTES, MAX_VALUES = 16 * 1024, 200


class Body(BaseModel):
    """What a small body says; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


async def read_body(request: Request, kind: type[BodyT]) -> BodyT:
    """The body as a value of this kind.  Raises ApiProblem."""

    def check(raw: dict[str, Any]) -> BodyT:
        try:
            return kind.model_validate(raw)
        except ValidationError as error:
            problems = [
                FieldProblem(field=_utf8(".".join(map(str, one["loc"]))), message=_utf8(one["msg"]))
                for one in error.errors(include_url=False, include_input=False)
            ]
        first = problems[0]
        detail = f"{first.field}: {first.message}" if first.field else first.message
        raise ApiProblem(422, "invalid_parameter", detail, errors=problems)

    return await read_object(request, MAX_BYTES, MAX_VALUES, context_of(request).checks, check)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()[:500]
