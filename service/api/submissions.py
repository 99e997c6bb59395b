"""What all submissions have in common: the specification, its code, and one answer for repeated requests."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from fastapi import Request
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError
from starlette.responses import Response

from cluster.policies.policies import Policies
from remora.code.checks import check_code, needs_code
from remora.errors import SpecError, SpecProblem
from remora.spec.array_elements import Element, elements_of
from remora.spec.spec import MAX_SPEC_BYTES, MAX_SPEC_VALUES, JobSpec
from remora.views import FieldProblem, Job
from service.api.authorisation import access_of
from service.api.bodies import read_specification
from service.api.context import Context, context_of
from service.api.problem_documents import ApiProblem, invalid_spec
from service.api.writes import Noted, write
from service.images import IMAGE_FIELD, NoImages, check_image
from service.mounts import NoMounts, check_mounts
from service.policies_in_force import limits_in_force
from service.queue.intake import JobLimits
from service.settings import Settings
from service.storage_locations import FIELD, UnknownStore, check_name
from service.store import idempotency_keys, submissions
from service.store.bundles import bundle_name, is_held
from service.store.idempotency_keys import SavedAnswer

#: Bytes of a job's body: a specification's, and as many for escapes and space.
MAX_JOB_BODY_BYTES = 2 * MAX_SPEC_BYTES


@dataclass(frozen=True)
class SpecBody:
    """What is submitted, and the digest by which a repetition is known."""

    spec: JobSpec
    digest: str


async def read_spec(
    request: Request, make: Callable[[dict[str, Any]], JobSpec] = JobSpec.from_mapping, salt: str = ""
) -> SpecBody:
    """The specification that `make` finds in the body; equal bodies with another `salt` ask for other things.

    Raises ApiProblem, and Forbidden when its project is none to which the principal may submit.
    """

    def read(body: dict[str, Any]) -> SpecBody:
        try:
            spec = make(body)
        except SpecError as error:
            raise invalid_spec(error) from None
        # YAML has values that JSON has not, such as dates; the specification refuses or keeps them as text.
        canonical = salt + json.dumps(body, sort_keys=True, default=str)
        return SpecBody(spec, hashlib.sha256(canonical.encode()).hexdigest())

    # What is wrong with the headers is said before a body is read.
    idempotency_key(request)
    context = context_of(request)
    limit = min(context.settings.max_body_bytes, MAX_JOB_BODY_BYTES)
    body = await read_specification(request, limit, MAX_SPEC_VALUES, context.checks, read)
    access_of(request).check(body.spec.project)
    return body


async def read_elements(request: Request, spec: JobSpec) -> list[Element]:
    """The jobs of an array; a short specification may have many.  Raises ApiProblem."""

    def read() -> list[Element]:
        try:
            return elements_of(spec)
        except SpecError as error:
            raise invalid_spec(error) from None

    return await context_of(request).checks.run(read, None)


async def check_bundle(request: Request, spec: JobSpec) -> None:
    """Raise ApiProblem when the job's code, store or podman for its image is not there, or its code contradicts it."""
    if spec.code_folder is None and (problems := unknown_here(context_of(request).settings, spec)):
        raise invalid_spec(SpecError(problems))
    await check_code_there(request, spec)


async def check_code_there(request: Request, spec: JobSpec) -> None:
    """Raise ApiProblem when the job's code is not there, or contradicts it."""
    context = context_of(request)
    if spec.code_folder is not None:
        message = "a folder on your machine is unknown here: upload it to /v1/bundles and give its digest"
        raise ApiProblem(
            422, "invalid_spec", f"code: {message}", errors=[FieldProblem(field="code", message=message)]
        )
    digest = spec.bundle
    if digest is not None and not await holds_bundle(request, digest):
        raise no_bundle(digest)
    if digest is not None and needs_code(spec):
        await asyncio.to_thread(_check_code, context, spec, digest)


def unknown_here(settings: Settings, spec: JobSpec) -> list[SpecProblem]:
    """What the job asks for and the settings of the service do not have: stores, images, mounts."""
    stores = {FIELD: spec.checkpoint.store}
    stores |= {f"inputs.{name}.store": one.store for name, one in spec.inputs.items()}
    problems = []
    for field, store in stores.items():
        try:
            check_name(settings, store)
        except UnknownStore as error:
            problems.append(SpecProblem(field, str(error)))
    try:
        check_image(settings, spec)
    except NoImages as error:
        problems.append(SpecProblem(IMAGE_FIELD, str(error)))
    try:
        check_mounts(settings, spec)
    except NoMounts as error:
        problems.append(SpecProblem(error.field, str(error)))
    return problems


async def holds_bundle(request: Request, digest: str) -> bool:
    """The bundle is there for the principal of the request: of others' it learns nothing."""
    context, access = context_of(request), access_of(request)
    # Who sees all projects needs no question to the database.
    if access.projects is not None and not await context.database.read(
        lambda connection: is_held(connection, access, digest)
    ):
        return False
    return await asyncio.to_thread(context.storage.exists, bundle_name(digest))


def no_bundle(digest: str) -> ApiProblem:
    """The code of a job is not there."""
    return ApiProblem(
        422,
        "bundle_not_found",
        f"there is no bundle {digest}",
        hint=f"PUT it to /v1/bundles/{digest} first",
    )


def _check_code(context: Context, spec: JobSpec, digest: str) -> None:
    try:
        with context.storage.open_read(bundle_name(digest)) as bundle:
            check_code(spec, bundle)
    except SpecError as error:
        raise invalid_spec(error) from None


#: Creates what was asked for, within the limits of the policies; returns the id of a job that it makes, and the answer.
Create = Callable[[sa.Connection, Noted, Policies], tuple[str, str]]


@dataclass(frozen=True, kw_only=True)
class SubmissionOrder:
    """A request that makes jobs, and is carried out once."""

    key: str | None
    digest: str
    create: Create
    #: Jobs that it makes, and of which project.
    jobs: int
    project: str
    now: float


async def answer_once(
    request: Request, body: SpecBody, create: Create, path: str, view: type[BaseModel], jobs: int = 1
) -> Response:
    """Create what was asked for, or give the answer that was given for the same `Idempotency-Key`.

    The answer is a `view`, which is found below `path`.  Raises ApiProblem.
    """
    context = context_of(request)
    order = SubmissionOrder(
        key=scoped_key(request),
        digest=body.digest,
        create=create,
        jobs=jobs,
        project=body.spec.project,
        now=context.clock(),
    )

    def work(connection: sa.Connection, noted: Noted) -> tuple[str, bool]:
        return carry_out(connection, order, limits_in_force(connection, context.settings), noted)

    try:
        answer, is_replay = await write(request, work)
    except IntegrityError:
        # The same key came twice at the same moment and the other request won: now its answer is there.
        answer, is_replay = await write(request, work)
    made: Any = view.model_validate_json(answer)
    headers = {"Location": f"{path}/{made.id}"}
    if isinstance(made, Job):
        headers["ETag"] = f'"{made.version}"'
    if is_replay:
        headers["Idempotency-Replayed"] = "true"
    return Response(answer, 201, headers, media_type="application/json")


def carry_out(
    connection: sa.Connection, order: SubmissionOrder, limits: JobLimits, noted: Noted
) -> tuple[str, bool]:
    """The answer, and whether it was given before.

    Raises ApiProblem, LimitReached, and IntegrityError beside an equal request.
    """
    key = order.key
    if key is not None and (saved := idempotency_keys.find_answer(connection, key)) is not None:
        if saved.body_digest != order.digest:
            raise ApiProblem(
                409,
                "idempotency_key_reused",
                "this Idempotency-Key was used with another body",
                hint="use a new key for a new job",
            )
        noted.outcome, noted.object = "replayed", saved.job_id
        return saved.answer, True
    try:
        submissions.check_jobs(connection, order.project, order.jobs, limits)
        job_id, answer = order.create(connection, noted, limits.policies)
    except submissions.BundleMissing as missing:
        raise no_bundle(str(missing)) from None
    except SpecError as error:
        raise invalid_spec(error) from None
    if key is not None:
        idempotency_keys.save_answer(connection, key, SavedAnswer(order.digest, job_id, answer), order.now)
    return answer, False


def scoped_key(request: Request) -> str | None:
    """What the request's `Idempotency-Key` is saved under: two principals may use the same one.  Raises ApiProblem."""
    key = idempotency_key(request)
    return None if key is None else idempotency_keys.key_of(access_of(request).principal, key)


def idempotency_key(request: Request) -> str | None:
    """The request's `Idempotency-Key`, or None.  Raises ApiProblem."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    if not 1 <= len(key) <= 128 or not all(" " <= character <= "~" for character in key):
        raise ApiProblem(
            422, "invalid_idempotency_key", "Idempotency-Key takes 1 to 128 printable ASCII characters"
        )
    return key
