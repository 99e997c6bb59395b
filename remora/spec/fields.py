"""Values of a specification's fields: what a number, a name, a size or a duration may be (pure)."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, StrictStr

from remora.spec.quantities import parse_budget, parse_duration, parse_moment, parse_size

MAX_WORKERS = 4096
#: Entries of `retry.on_exit_codes`, and of `retry.on_log_patterns`; characters of a pattern, and of a line that is
#: searched for it: every line of a job is searched for all of its patterns.
MAX_EXIT_CODES, MAX_PATTERNS, LONGEST_PATTERN, SEARCHED = 50, 10, 500, 4096
#: Pools, or zones, that one job may name.
MAX_PLACES = 16

#: Characters of an image's name.
LONGEST_IMAGE = 512
IMAGE_FORM = (
    "an image with its registry, e.g. docker.io/library/python:3.12 or localhost/own, or the id of one that is on the"
    " nodes"
)
#: Of the name of a registry something says that it is one: others name what podman reads from files (`dir:`, `oci:`).
_REGISTRY = re.compile(r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+)(?::\d{1,5})?")
_IMAGE_PATH = re.compile(
    r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*"
    r"(?::\w[\w.-]{0,127})?(?:@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_IMAGE_ID = re.compile(r"(?:sha256:[0-9a-f]{64}|[0-9a-f]{12,64})")

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
NAME_FORM = "1 to 63 of a-z, 0-9, '-', '_' and '.', beginning with a letter or a digit"
_ZONE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?")
_EXIT_CODES = re.compile(r"(\d{1,3})\s*-\s*(\d{1,3})")
#: Labels of one job, and characters of a label's value.
MAX_LABELS, LONGEST_LABEL = 50, 200
LABELS_FORM = 'names with text values; put quotes around numbers, e.g. {team: vision, run: "3"}'
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,62}")
_JOB_ID = re.compile(r"job_[0-9A-HJKMNP-TV-Z]{26}")
EXIT_CODES_FORM = 'a list of exit codes from 1 to 255 and of ranges, e.g. [75, "128-255"]'
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
#: Variables that the supervisor sets for every worker.
_OUR_VARIABLES = frozenset(
    f"{group}{word}"
    for group, words in {
        "": ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
        "LOCAL_": ("RANK", "WORLD_SIZE"),
        "GROUP_": ("RANK", "WORLD_SIZE"),
        "ROLE_": ("RANK", "WORLD_SIZE"),
        "NODE_": ("RANK",),
    }.items()
    for word in words
)
_OUR_PREFIXES = ("REMORA_", "TORCHELASTIC_")


def whole(value: object) -> object:
    """A whole number, or what is left for pydantic to refuse; ValueError for anything else."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is not int:  # a bool is an int to isinstance
        raise ValueError
    return value


def _number(value: object) -> object:
    if type(value) not in (int, float):
        raise ValueError
    return value


def is_name(text: str) -> bool:
    """True for what may name a job, a project, a pool or a store."""
    return _NAME.fullmatch(text) is not None


def _name(value: str) -> str:
    if not is_name(value):
        raise ValueError
    return value


def _image(value: str) -> str:
    if len(value) > LONGEST_IMAGE:
        raise ValueError
    registry, slash, path = value.partition("/")
    is_named = slash and _REGISTRY.fullmatch(registry) and _IMAGE_PATH.fullmatch(path)
    if not is_named and not _IMAGE_ID.fullmatch(value):
        raise ValueError
    return value


def _job_id(value: str) -> str:
    if not _JOB_ID.fullmatch(value):
        raise ValueError
    return value


def _zone(value: object) -> str:
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or not _ZONE.fullmatch(text):
        raise ValueError
    return text


def _positive(value: float) -> float:
    if value <= 0:
        raise ValueError("expected more than 0 seconds")
    return value


def _interval(value: object) -> float | str:
    return "auto" if value == "auto" else _positive(parse_duration(value))


def exit_codes_of(entry: int | str) -> tuple[int, int]:
    """The first and the last code that an entry of `retry.on_exit_codes` means.  Raises ValueError."""
    if isinstance(entry, str):
        if not (found := _EXIT_CODES.fullmatch(entry.strip())):
            raise ValueError
        first, last = int(found[1]), int(found[2])
    else:
        first = last = entry
    if not 1 <= first <= last <= 255:
        raise ValueError
    return first, last


def _exit_codes(value: object) -> int | str:
    """A code, or a range in its shortest form."""
    entry = value.strip() if isinstance(value, str) else whole(value)
    if isinstance(entry, str) and entry.isascii() and entry.isdecimal():
        raise ValueError(f"expected a number without quotes: {entry[:3]}")
    first, last = exit_codes_of(entry)  # type: ignore[arg-type]  # a whole number or a text
    return first if first == last else f"{first}-{last}"


def _passable(value: str) -> str:
    if "\0" in value:
        raise ValueError("a null character cannot be passed to a process")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError("half a character (a lone surrogate) has no bytes; remove it") from None
    return value


def refuses_variable(name: str) -> str | None:
    """Why an environment variable of this name cannot be given; None when it can."""
    if not _VARIABLE.fullmatch(name):
        return f"{name[:80]!r} is not a variable's name; use letters, digits and '_'"
    if name in _OUR_VARIABLES or name.startswith(_OUR_PREFIXES):
        return f"{name} is set by Remora for every worker; choose another name"
    return None


def refuses_label(name: object, value: object) -> str | None:
    """Why a job cannot have this label; None when it can."""
    if not isinstance(name, str) or not _LABEL.fullmatch(name):
        return (
            f"{str(name)[:80]!r} is not a label's name; use 1 to 63 letters, digits, '-', '_', '.' and '/', beginning"
            " with a letter or a digit"
        )
    if not isinstance(value, str):
        return f"the value of the label {name} is no text; put quotes around it"
    if len(value) > LONGEST_LABEL or not value.isprintable():
        return f"the value of the label {name} is no line of at most {LONGEST_LABEL} characters"
    return None


Whole = Annotated[int, BeforeValidator(whole)]
Number = Annotated[float, BeforeValidator(_number)]
Name = Annotated[StrictStr, AfterValidator(_name)]
#: An image as podman names it.
Image = Annotated[StrictStr, AfterValidator(_image)]
JOB_ID_FORM = "the whole id of a job, job_ and 26 characters"
JobId = Annotated[StrictStr, AfterValidator(_job_id)]
Duration = Annotated[float, BeforeValidator(parse_duration)]
#: A zone as its cloud writes it; a number becomes a text.
Zone = Annotated[str, BeforeValidator(_zone)]
PositiveDuration = Annotated[float, BeforeValidator(parse_duration), AfterValidator(_positive)]
Interval = Annotated[float | Literal["auto"], PlainValidator(_interval)]
Size = Annotated[int, BeforeValidator(parse_size)]
Text = Annotated[StrictStr, AfterValidator(_passable)]
#: One exit code, or a range of them such as `128-255`.
ExitCodes = Annotated[int | str, PlainValidator(_exit_codes)]
Budget = Annotated[float, BeforeValidator(parse_budget)]
#: Seconds since 1970.
Moment = Annotated[float, BeforeValidator(parse_moment)]
SHARE_FORM = "a whole number from 1 to 2**31"
Share = Annotated[Whole, Field(ge=1, le=2**31, description=SHARE_FORM)]
WorkerCount = Annotated[
    Whole, Field(ge=1, le=MAX_WORKERS, description=f"a whole number from 1 to {MAX_WORKERS}")
]
