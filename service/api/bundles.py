"""Code bundles: archives addressed by their digest, uploaded once."""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import sqlalchemy as sa
from fastapi import APIRouter, Query, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from remora.code.bundle import BundleLimits, verify
from remora.errors import BundleError
from service.api.authorisation import access_of
from service.api.bodies import save
from service.api.context import context_of
from service.api.parameters import Parameters
from service.api.problem_documents import ApiProblem
from service.api.submissions import holds_bundle
from service.api.writes import Noted, write
from service.policies_in_force import policies_in_force
from service.settings import Settings
from service.store.bundles import bundle_name, hold, measure, use
from trainers.storage import Storage

router = APIRouter(prefix="/v1/bundles/{digest}")

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CHUNK = 2**20
#: Folder below `home` for bundles that are still coming in.
UPLOADS = "uploads"


def forget_interrupted(home: Path, before: float) -> None:
    """Remove what uploads left behind that were under way when the process was killed, before the given time."""
    for part in (home / UPLOADS).glob("*.part"):
        with contextlib.suppress(FileNotFoundError):
            if part.stat().st_mtime < before:
                part.unlink()


def _name(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise ApiProblem(404, "bundle_not_found", "a bundle's digest is sha256: and 64 hexadecimal digits")
    return bundle_name(digest)


async def _exists(request: Request, digest: str) -> bool:
    """It is there for this principal, and stays for the time that retention gives those that are used now."""
    context = context_of(request)
    _name(digest)
    if not await holds_bundle(request, digest):
        return False
    return await context.database.write(lambda connection: use(connection, digest, context.clock()))


@router.head("", operation_id="has_bundle")
async def has_bundle(request: Request, digest: str, _: Annotated[Parameters, Query()]) -> Response:
    """200 when the bundle is there, so that it need not be uploaded."""
    if not await _exists(request, digest):
        return Response(status_code=404, media_type="application/problem+json")
    return Response(media_type="application/zip")


@router.get("", operation_id="get_bundle")
async def get_bundle(request: Request, digest: str, _: Annotated[Parameters, Query()]) -> Response:
    """The archive itself."""
    context = context_of(request)
    name = _name(digest)
    missing = ApiProblem(404, "bundle_not_found", f"there is no bundle {digest}")
    if not await holds_bundle(request, digest):
        raise missing
    try:
        size = await asyncio.to_thread(context.storage.size, name)
    except FileNotFoundError:
        raise missing from None
    request.scope["remora.is_stream"] = True
    return StreamingResponse(
        _read(context.storage, name), media_type="application/zip", headers={"Content-Length": str(size)}
    )


def _read(storage: Storage, name: str) -> Iterator[bytes]:
    with storage.open_read(name) as file:
        while chunk := file.read(_CHUNK):
            yield chunk


@router.put("", operation_id="put_bundle", status_code=201)
async def put_bundle(request: Request, digest: str, _: Annotated[Parameters, Query()]) -> Response:
    """Store an archive: 201, or 200 when it was there already.  It is read to its last byte before it is kept.

    One that only others have uploaded is uploaded again: that proves that this principal has it, too.
    """
    context, principal = context_of(request), access_of(request).principal

    def held(connection: sa.Connection, size: int | None) -> None:
        if size is not None:
            measure(connection, digest, size)
        policies = policies_in_force(connection, context.settings)
        most = None if principal.is_operator else policies.principals.bundle_bytes
        hold(connection, digest, principal.id, most)

    def record(connection: sa.Connection, noted: Noted, size: int | None) -> None:
        held(connection, size)
        noted.object, noted.outcome = digest, "unchanged" if size is None else "done"
        noted.after = None if size is None else {"size_bytes": size}

    if await _exists(request, digest):
        await write(request, partial(record, size=None))
        return JSONResponse({"digest": digest}, 200)
    # Its row is first: from now on no file of that name is deleted.
    if not await context.database.write(lambda connection: use(connection, digest, context.clock())):
        raise ApiProblem(
            503,
            "bundle_goes",
            "this bundle was not used for long and is being deleted now",
            hint="upload it again in some seconds",
            headers={"Retry-After": "2"},
        )
    settings = context.settings
    folder = settings.home / UPLOADS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    upload = folder / f"{uuid.uuid4().hex}.part"
    try:
        found = await save(request, upload, settings.max_bundle_bytes)
        if f"sha256:{found}" != digest:
            raise ApiProblem(
                422, "bundle_invalid", f"the digest of what arrived is sha256:{found}", hint="upload it again"
            )
        await asyncio.to_thread(_verify, settings, upload)
        # Counted before it is kept: what would be too much never comes into the storage.
        size = upload.stat().st_size
        await context.database.write(partial(held, size=size))
        await asyncio.to_thread(partial(context.storage.write_file, move=True), bundle_name(digest), upload)
        await write(request, partial(record, size=size))
    finally:
        with contextlib.suppress(FileNotFoundError):
            upload.unlink()
    return JSONResponse({"digest": digest}, 201, headers={"Location": f"/v1/bundles/{digest}"})


def _verify(settings: Settings, upload: Path) -> None:
    limits = BundleLimits(packed_bytes=settings.max_bundle_bytes, unpacked_bytes=settings.max_unpacked_bytes)
    try:
        verify(upload, limits)
    except BundleError as error:
        raise ApiProblem(422, "bundle_invalid", str(error)) from None
