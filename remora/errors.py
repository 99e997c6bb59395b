"""Everything that Remora raises on purpose.

    RemoraError
    ├── SpecError             a job specification is refused; one problem per field
    ├── BundleError           a code folder or a code bundle is refused
    ├── ConfigurationError    a setting of the client is wrong
    ├── ConnectionFailed      the service cannot be reached
    ├── WaitTimeout           `wait` gave up; the job goes on
    ├── DownloadError         a checkpoint could not be put on this disk
    └── ApiError              the service answered with an error
        ├── Invalid           400, 422: the request is wrong
        ├── Unauthenticated   401: the service asks who you are, or does not believe it
        ├── Forbidden         403: you may not do this
        ├── NotFound          404: there is no such thing
        ├── Conflict          409, 412: the thing is in another state
        ├── TooLarge          413: more bytes than the service takes
        └── Unavailable       429, 500 and above: not now

Messages are sentences for people; programs look at the class and at `ApiError.code`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

#: Problems of one specification, or of one document, that are named.
MAX_PROBLEMS = 50
#: The last one of them when there are more.
MORE_PROBLEMS = "there are more problems than these; repair them and try again"


class RemoraError(Exception):
    """The root of all errors that a caller of Remora may want to catch."""


@dataclass(frozen=True)
class SpecProblem:
    """One refused field of a job specification."""

    #: Dotted path such as `workers.min`; empty for the specification as a whole.
    field: str
    #: The value, what was expected, and what to do.
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class SpecError(RemoraError):
    """A job specification is refused; `str()` gives one line per problem.

    Of more than `MAX_PROBLEMS` the first ones are taken, and no more than these are asked of `problems`.
    """

    def __init__(self, problems: Iterable[SpecProblem]) -> None:
        found = tuple(itertools.islice(problems, MAX_PROBLEMS + 1))
        if len(found) > MAX_PROBLEMS:
            found = (*found[: MAX_PROBLEMS - 1], SpecProblem("", MORE_PROBLEMS))
        self.problems = found
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type[SpecError], tuple[tuple[SpecProblem, ...]]]:
        return type(self), (self.problems,)


class BundleError(RemoraError):
    """A code folder cannot be packed, or a code bundle is not acceptable."""


class ConfigurationError(RemoraError):
    """A setting of the client is wrong."""


class ConnectionFailed(RemoraError):
    """The service does not answer at its address."""


class WaitTimeout(RemoraError):
    """The job had not ended when the time given to `wait` was over; it goes on."""


class DownloadError(RemoraError):
    """A checkpoint could not be put on this machine's disk."""


class ApiError(RemoraError):
    """The service answered with an error (a problem document of RFC 9457)."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        hint: str | None = None,
        errors: Iterable[SpecProblem] = (),
        request_id: str | None = None,
    ) -> None:
        #: HTTP status.
        self.status = status
        #: Stable word for programs, e.g. `job_not_found`.
        self.code = code
        #: One sentence for people.
        self.detail = detail
        #: What to do about it.
        self.hint = hint
        #: The refused fields, when there are any.
        self.errors = tuple(errors)
        #: Names this request in the service's log.
        self.request_id = request_id
        super().__init__(status, code, detail)

    def __str__(self) -> str:
        fields = "; ".join(str(error) for error in self.errors if error.message not in self.detail)
        parts = [part for part in (self.detail, fields, self.hint) if part]
        return "; ".join([*(part.rstrip(".") for part in parts[:-1]), *parts[-1:]])


class Invalid(ApiError):
    """The request is wrong and will stay wrong (400, 422)."""


class Unauthenticated(ApiError):
    """The service asks for a token, or takes this one for nothing (401)."""


class Forbidden(ApiError):
    """It is there, and you may not do this to it (403)."""


class NotFound(ApiError):
    """There is no such thing (404)."""


class Conflict(ApiError):
    """The thing is in a state that forbids it (409, 412)."""


class TooLarge(ApiError):
    """More bytes than the service takes (413)."""


class Unavailable(ApiError):
    """The service cannot do it now (429, 500 and above)."""


def api_error_class(status: int) -> type[ApiError]:
    """The class of error for an HTTP status."""
    by_status = {
        400: Invalid,
        401: Unauthenticated,
        403: Forbidden,
        404: NotFound,
        409: Conflict,
        412: Conflict,
        413: TooLarge,
        422: Invalid,
    }
    if status == 429 or status >= 500:
        return Unavailable
    return by_status.get(status, ApiError)
