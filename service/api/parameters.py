"""Query parameters: typed, bounded, and unknown ones refused, because a misspelt filter must not return everything."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from remora.states import JobState, NodeState
from service.api.problem_documents import ApiProblem

MAX_NUMBER = 2**53
#: Values of one parameter.
_MOST_WORDS = 50

Number = Annotated[int, Field(ge=0, le=MAX_NUMBER)]
Limit = Annotated[int, Field(ge=1, le=1000)]
Cursor = Annotated[str, Field(max_length=200)]


def split_words(value: object) -> object:
    """`state=queued,running` means the same as `state=queued&state=running`."""
    words = value if isinstance(value, list) else [value]
    parts = [part for word in words for part in str(word).split(",")]
    if len(parts) > _MOST_WORDS:
        raise ValueError(f"write at most {_MOST_WORDS} of them")
    return parts


class Parameters(BaseModel):
    """No parameter at all."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SubmitParameters(Parameters):
    """Whether a job is only tried out."""

    dry_run: bool = False


class JobsParameters(Parameters):
    """Which jobs, and which page of them."""

    state: Annotated[list[JobState], BeforeValidator(split_words)] = Field(default_factory=list)
    #: `name=value`, or `name` for any value; a job has to have all of them.
    label: Annotated[list[Annotated[str, Field(min_length=1, max_length=300)]], Field(max_length=20)] = Field(
        default_factory=list
    )
    array: Annotated[str, Field(max_length=40)] | None = None
    project: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")] | None = None
    limit: Limit = 100
    cursor: Cursor | None = None


class PageParameters(Parameters):
    """Which page of a list."""

    limit: Limit = 100
    cursor: Cursor | None = None


class NodesParameters(PageParameters):
    """Which nodes, and which page of them."""

    state: Annotated[list[NodeState], BeforeValidator(split_words)] = Field(default_factory=list)


class OutputsParameters(Parameters):
    """Which page of a job's files; a cursor holds a name."""

    limit: Limit = 1000
    cursor: Annotated[str, Field(max_length=4000)] | None = None


class EventsParameters(Parameters):
    """Which events."""

    after: Number = 0
    limit: Limit = 1000
    cursor: Cursor | None = None


class TailParameters(EventsParameters):
    """Which entries of a job; with `tail` only the last ones of those, at most that number."""

    tail: Annotated[int, Field(ge=0, le=1_000_000)] | None = None


class JobEventsParameters(TailParameters):
    """Which events of a job."""

    #: PostgreSQL has no text with the character 0.
    kind: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=100, pattern=r"^[^\x00]*$")]],
        BeforeValidator(split_words),
    ] = Field(default_factory=list)


class LogsParameters(TailParameters):
    """Which lines."""

    rank: Annotated[int, Field(ge=-1, le=MAX_NUMBER)] | None = None
    attempt: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    #: PostgreSQL has no text with the character 0.
    contains: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00]*$")] | None = None


class MetricsParameters(Parameters):
    """Which points; with `points` at most that number, which stand for all."""

    points: Annotated[int, Field(ge=1, le=2000)] | None = None
    after_step: Annotated[int, Field(ge=-1, le=MAX_NUMBER)] = -1
    limit: Limit = 1000
    cursor: Cursor | None = None


def make_cursor(position: str | int) -> str:
    """Where the next page begins, for clients to give back unread."""
    return base64.urlsafe_b64encode(str(position).encode()).decode().rstrip("=")


def read_cursor(cursor: str) -> str:
    """What `make_cursor` was given.  Raises ApiProblem `invalid_cursor`."""
    try:
        text = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        text = ""
    if not text or "\0" in text or make_cursor(text) != cursor:
        raise ApiProblem(
            422, "invalid_cursor", "the cursor is not one that a page gave", hint="begin without a cursor"
        )
    return text


def read_number_cursor(cursor: str | None, otherwise: int) -> int:
    """A position that is a number, or `otherwise` without a cursor.  Raises ApiProblem `invalid_cursor`."""
    if cursor is None:
        return otherwise
    text = read_cursor(cursor)
    if not (text.isascii() and text.isdigit()) or int(text[:20]) > MAX_NUMBER:
        raise ApiProblem(422, "invalid_cursor", "the cursor is not one that this list gave")
    return int(text)
