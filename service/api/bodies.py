"""Request bodies: read from the stream within limits, and JSON without surprises."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio
from starlette.requests import ClientDisconnect, Request

from remora.errors import SpecError
from remora.spec.bounds import has_more_values
from remora.spec.problems import read_yaml
from remora.spec.spec import MAX_SPEC_BYTES
from service.api.problem_documents import ApiProblem, invalid_spec
from service.api.validation_thread import Checks

T = TypeVar("T")


def _too_large(limit: int) -> ApiProblem:
    return ApiProblem(413, "too_large", f"the request's body has more than {limit} bytes")


def _check_length(request: Request, limit: int) -> None:
    length = request.headers.get("content-length", "0")
    if length.isdigit() and int(length[:20]) > limit:
        raise _too_large(limit)


#: Media types of YAML: that of RFC 9512, and the one that programs sent before it.
YAML_TYPES = frozenset({"application/yaml", "application/x-yaml"})


def media_type_of(request: Request) -> str:
    """What the body is said to be, such as `application/json`."""
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


async def read_json(request: Request, limit: int) -> bytes:
    """The body, said to be JSON and not parsed yet, of at most `limit` bytes.  Raises ApiProblem 400, 413 or 415."""
    if media_type_of(request) != "application/json":
        raise ApiProblem(
            415, "unsupported_media_type", "the body must be JSON", hint="send Content-Type: application/json"
        )
    return await read_bytes(request, limit)


async def read_bytes(request: Request, limit: int) -> bytes:
    """The body, of at most `limit` bytes.  Raises ApiProblem 400 or 413."""
    _check_length(request, limit)
    body = bytearray()
    async for chunk in _stream(request):
        body += chunk
        if len(body) > limit:
            raise _too_large(limit)
    return bytes(body)


async def read_object(
    request: Request, limit: int, values: int, checks: Checks, check: Callable[[dict[str, Any]], T]
) -> T:
    """What `check` makes of the body, a JSON object of at most `limit` bytes and some `values`.

    Both parsing and `check` are done by `checks`, so a large body does not delay other requests.
    Raises ApiProblem 400, 413, 415 or 422, and what `check` raises.
    """
    body = await read_json(request, limit)
    return await checks.run(lambda: check(parse_object(body, values)), len(body))


async def read_specification(
    request: Request, limit: int, values: int, checks: Checks, check: Callable[[dict[str, Any]], T]
) -> T:
    """The same for a body that may also be YAML, which is read as the command line reads a file.

    Raises ApiProblem 400, 413, 415 or 422, and what `check` raises.
    """
    if media_type_of(request) not in YAML_TYPES:
        return await read_object(request, limit, values, checks, check)
    body = await read_bytes(request, min(limit, MAX_SPEC_BYTES))

    def work() -> T:
        try:
            found = read_yaml(_decoded(body), MAX_SPEC_BYTES)
        except SpecError as error:
            raise invalid_spec(error) from None
        if not isinstance(found, dict):
            raise ApiProblem(422, "invalid_spec", "the body must be a mapping of fields")
        return check(found)

    return await checks.run(work, len(body))


def _decoded(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise ApiProblem(400, "invalid_encoding", f"the body is not UTF-8 at byte {error.start}") from None


def parse_object(body: bytes, values: int) -> dict[str, Any]:
    """A JSON object, never parsed when it has too many values.  Raises ApiProblem 400 or 422."""
    if has_more_values(body, values):
        raise ApiProblem(422, "invalid_spec", f"the body has more than {values} values")
    value = _parse(_decoded(body))
    if not isinstance(value, dict):
        raise ApiProblem(422, "invalid_spec", "the body must be a JSON object")
    return value


async def _stream(request: Request) -> Any:
    try:
        async for chunk in request.stream():
            yield chunk
    except ClientDisconnect:
        raise ApiProblem(400, "incomplete_body", "the client left before its body was complete") from None


def _parse(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ApiProblem(400, "invalid_json", "the body is nested too deeply") from None
    except json.JSONDecodeError as error:
        message = f"the body is not JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        raise ApiProblem(400, "invalid_json", message) from None
    except ValueError as error:  # Python refuses numbers of thousands of digits
        raise ApiProblem(400, "invalid_json", f"the body is not JSON: {str(error)[:200]}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise ApiProblem(400, "invalid_json", f"the key {twice[:80]!a} stands twice in one object")
    return found


def _no_constant(word: str) -> Any:
    raise ApiProblem(400, "invalid_json", f"{word} is not a JSON number")


async def save(request: Request, path: Path, limit: int) -> str:
    """Stream the body into a file of at most `limit` bytes; its SHA-256, hexadecimal.  Raises ApiProblem."""
    _check_length(request, limit)
    digest = hashlib.sha256()
    size = 0
    async with await anyio.open_file(path, "wb") as file:
        async for chunk in _stream(request):
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            digest.update(chunk)
            await file.write(chunk)
    return digest.hexdigest()
