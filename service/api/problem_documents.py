"""Errors of the API: problem documents (RFC 9457) with a stable code, whatever went wrong."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Mapping, Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from sqlalchemy.exc import DBAPIError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import BaseRoute, Match

from remora.errors import MAX_PROBLEMS, SpecError
from remora.process_log import request_id
from remora.views import FieldProblem, Problem
from service.store.failures import SENTENCES, DatabaseFailure, failure_of, why_failed
from trainers.storage import FULL, StorageError, StorageFull

log = logging.getLogger(__name__)

TITLES: Mapping[int, str] = {
    304: "Not modified",
    400: "Bad request",
    401: "Not authenticated",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Too large",
    414: "Too long",
    415: "Unsupported media type",
    421: "Misdirected request",
    422: "Invalid",
    429: "Too many",
    500: "Internal error",
    503: "Not available now",
    507: "Insufficient storage",
}


class ApiProblem(Exception):
    """Ends a request with an error; everything in it is shown to the client."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        hint: str | None = None,
        errors: Iterable[FieldProblem] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.hint = hint
        self.errors = list(errors)
        self.headers = dict(headers or {})

    def response(self) -> Response:
        """The problem document."""
        problem = Problem(
            title=TITLES.get(self.status, "Error"),
            status=self.status,
            code=self.code,
            detail=self.detail,
            hint=self.hint,
            request_id=request_id.get(),
            errors=self.errors,
        )
        return Response(
            problem.model_dump_json(),
            self.status,
            headers=self.headers,
            media_type="application/problem+json",
        )


def job_not_found(job_id: str) -> ApiProblem:
    """There is no such job."""
    return ApiProblem(
        404, "job_not_found", f"there is no job {job_id[:80]!r}", hint="`remora list` shows all jobs"
    )


def forbidden(detail: str) -> ApiProblem:
    """The principal sees it and may not do this."""
    hint = "`remora whoami` shows your roles; an admin of the project gives others"
    return ApiProblem(403, "forbidden", detail, hint=hint)


def invalid_spec(error: SpecError) -> ApiProblem:
    """A specification is refused; every field is named."""
    problems = [FieldProblem(field=_utf8(one.field), message=_utf8(one.message)) for one in error.problems]
    detail = _utf8(str(error.problems[0]) if error.problems else str(error))
    return ApiProblem(422, "invalid_spec", detail, errors=problems)


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def invalid_parameter(field: str, message: str) -> ApiProblem:
    """One parameter is wrong."""
    return ApiProblem(
        422,
        "invalid_parameter",
        f"{field}: {message}",
        errors=[FieldProblem(field=field, message=message)],
    )


def _invalid(error: RequestValidationError) -> ApiProblem:
    problems: list[FieldProblem] = []
    for item in itertools.islice(error.errors(), MAX_PROBLEMS):
        place = [str(part) for part in item["loc"] if part not in ("query", "path", "header", "body")]
        message = "there is no such parameter" if item["type"] == "extra_forbidden" else str(item["msg"])
        problems.append(FieldProblem(field=_printable(".".join(place)), message=_printable(message)))
    first = problems[0]
    return ApiProblem(422, "invalid_parameter", f"{first.field}: {first.message}", errors=problems)


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8")[:500]


def allowed_methods(routes: Sequence[BaseRoute], path: str) -> list[str]:
    """Every method that some route takes at a path; Starlette's own answer names one route's only."""
    methods: set[str] = set()
    for route in routes:
        match, _ = route.matches({"type": "http", "method": "", "path": path, "root_path": ""})
        if match is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return sorted(methods)


def _http(request: Request, error: HTTPException, routes: Sequence[BaseRoute]) -> ApiProblem:
    if error.status_code == 404:
        return ApiProblem(404, "not_found", f"there is nothing at {_printable(request.url.path)}")
    if error.status_code == 405:
        allowed = ", ".join(allowed_methods(routes, request.scope["path"]))
        return ApiProblem(
            405,
            "method_not_allowed",
            f"{request.method} is not possible here; possible: {allowed}",
            headers={"Allow": allowed},
        )
    if error.status_code == 413:
        return ApiProblem(413, "too_large", "the request's body is too large")
    code = "bad_request" if error.status_code < 500 else "internal_error"
    return ApiProblem(error.status_code, code, _printable(str(error.detail)))


def install(app: FastAPI, routes: Sequence[BaseRoute]) -> None:
    """Make every error of the app, whose `routes` are given one by one, a problem document."""

    @app.exception_handler(ApiProblem)
    async def _problem(request: Request, error: ApiProblem) -> Response:  # noqa: ARG001
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def _validation(request: Request, error: RequestValidationError) -> Response:  # noqa: ARG001
        return _invalid(error).response()

    @app.exception_handler(HTTPException)
    async def _exception(request: Request, error: HTTPException) -> Response:
        return _http(request, error, routes).response()

    @app.exception_handler(DBAPIError)
    async def _database(request: Request, error: DBAPIError) -> Response:  # noqa: ARG001
        log.error("%s", why_failed(error))
        return of_database(error).response()

    @app.exception_handler(StorageError)
    async def _storage(request: Request, error: StorageError) -> Response:  # noqa: ARG001
        log.error("%s", error)
        if isinstance(error, StorageFull):
            return _unavailable("storage_full", "the storage is full: free space in it", 507).response()
        return _unavailable("storage_unavailable", "the storage does not answer").response()

    @app.exception_handler(OSError)
    async def _disk(request: Request, error: OSError) -> Response:  # noqa: ARG001
        if error.errno not in FULL:
            raise error
        log.error("a disk of the service is full: %s", error)
        return _unavailable("disk_full", "a disk of the service is full: free space on it", 507).response()


def of_database(error: DBAPIError) -> ApiProblem:
    """The database does not do what it is asked for."""
    failure = failure_of(error)
    detail = SENTENCES.get(failure, "the database does not answer")
    match failure:
        case DatabaseFailure.FULL:
            return _unavailable("database_full", detail, 507)
        case DatabaseFailure.READ_ONLY:
            return _unavailable("database_read_only", detail)
        case DatabaseFailure.BROKEN_DISK | DatabaseFailure.DAMAGED:
            return _unavailable("database_failed", detail)
        case _:
            return _unavailable("database_unavailable", detail)


def _unavailable(code: str, detail: str, status: int = 503) -> ApiProblem:
    hint, retry_s = "try again; the service's log says more", "1"
    if status == 507:
        hint, retry_s = "try again when there is space; what was answered before is stored", "30"
    return ApiProblem(status, code, detail, hint=hint, headers={"Retry-After": retry_s})
