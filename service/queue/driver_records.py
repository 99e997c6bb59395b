"""Validates records of drivers: each becomes one of these values, or `InvalidRecord` with the reason.

Values come from users' scripts, so every number is bounded, and every text can be stored in both databases.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from remora.states import AttemptState, EndReason
from trainers.plan import Record

MAX_INTEGER = 2**53
#: Nodes on which an attempt can have workers.
MAX_ADDRESSES = 4096
#: Workers of an attempt that say at once how busy they are.
MAX_LOADS = 100_000
#: Checkpoints on the list of a job: more than `checkpoint.keep` may be, for those that could not be deleted.
MAX_CHECKPOINTS = 10_000


def clean_text(value: object) -> object:
    """The text without what databases refuse: NUL and halves of surrogate pairs become U+FFFD."""
    if not isinstance(value, str):
        return value
    if "\x00" in value:
        value = value.replace("\x00", "\ufffd")
    if value.isascii():
        return value
    return (
        value.encode("utf-8", "surrogatepass").decode("utf-8", "replace") if _has_surrogate(value) else value
    )


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def clean_json(value: Any, depth: int = 0) -> Any:
    """The value as JSON that both databases take: clean texts, finite numbers, at most 8 levels."""
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= MAX_INTEGER else str(value)[:100]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if depth >= 8:
        return "..."
    if isinstance(value, dict):
        return {str(clean_text(str(key))): clean_json(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(item, depth + 1) for item in value]
    return clean_text(str(value))


def _finite_values(value: object) -> object:
    if not isinstance(value, dict):
        return value
    return {clean_text(str(name)): _finite(number) for name, number in value.items()}


def _finite(value: object) -> object:
    if not isinstance(value, int | float):
        return value
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


Text = Annotated[str, BeforeValidator(clean_text)]
Word = Annotated[str, BeforeValidator(clean_text), Field(max_length=200)]
Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
Seconds = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class RecordBody(BaseModel):
    """The body of a record of a driver."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class EventRecord(RecordBody):
    """An event of the attempt."""

    kind: Word
    message: Text = ""
    data: Annotated[dict[str, Any], BeforeValidator(clean_json)] = Field(default_factory=dict)


class LogRecord(RecordBody):
    """One or more lines of output, with newlines between them."""

    rank: Annotated[int, Field(ge=-1, le=MAX_INTEGER)]
    stream: Literal["stdout", "stderr", "remora"]
    text: Text


class MetricRecord(RecordBody):
    """The values of one step."""

    step: Count
    world_size: Count
    values: Annotated[dict[str, float | None], BeforeValidator(_finite_values)]


class CheckpointRecord(RecordBody):
    """A checkpoint became visible."""

    step: Count
    world_size: Count
    size_bytes: Count
    location: Text
    files: dict[Text, Count]
    committed_at: Seconds


class ListedCheckpoint(CheckpointRecord):
    """A checkpoint in the storage, of any attempt."""

    attempt: Count


class CheckpointListRecord(RecordBody):
    """All checkpoints that the job has in its storage."""

    checkpoints: Annotated[tuple[ListedCheckpoint, ...], Field(max_length=MAX_CHECKPOINTS)]


class CheckpointDeletedRecord(RecordBody):
    """A checkpoint was deleted."""

    step: Count
    deleted: Literal[True]
    reason: Literal["retention", "damaged"] = "retention"


class StoredFile(RecordBody):
    """One file of a job's outputs."""

    size_bytes: Count
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    #: Relative to the location of the outputs.
    stored: Text


class OutputRecord(RecordBody):
    """What the job's outputs are now."""

    location: Text
    committed_at: Seconds
    files: dict[Text, StoredFile]


class ProfileRecord(RecordBody):
    """How the profile of a rank went: a trace of `steps` steps, or why there is none."""

    number: Annotated[int, Field(ge=1, le=2**31 - 1)]
    message: Annotated[str, BeforeValidator(clean_text), Field(max_length=1000)] | None = None
    #: Names the trace in the storage.
    file: Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")] | None = None
    steps: Annotated[int, Field(ge=0, le=2**31 - 1)] | None = None
    size_bytes: Count | None = None
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None


class LoadOfWorker(RecordBody):
    """How busy a worker was for some seconds."""

    at: Seconds
    address: Word
    #: Processors that it kept busy.
    cpu: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
    #: The mean part of the time in which its GPUs computed; None: not known.
    gpu: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    gpus: Annotated[int, Field(ge=0, le=10_000)] = 0


class ProgressRecord(RecordBody):
    """The state of the attempt; None: not reported."""

    state: AttemptState | None = None
    world_size: Count | None = None
    #: Workers by the address of their node.
    workers: Annotated[dict[Word, Count], Field(max_length=MAX_ADDRESSES)] | None = None
    step: Count | None = None
    total_steps: Count | None = None
    repeated_steps: Count | None = None
    lost_s: Seconds | None = None
    resumed_from_step: Count | None = None
    #: What its worker group does since now: new steps, or steps that were done before.
    phase: Literal["training", "recomputing"] | None = None
    #: Seconds, in all, for which its training loop waited for checkpoints.
    stalled_s: Seconds | None = None
    #: How far the build of the job's environment is.
    preparing: Text | None = None
    #: Digest of the environment that the workers have.
    environment: Word | None = None
    #: Samples of a step that its first workers made of their own configuration.
    global_batch: Annotated[int, Field(ge=1, le=2**31)] | None = None
    #: By rank; those that have said so since the record before.
    loads: (
        Annotated[dict[Annotated[int, Field(ge=0, le=2**31 - 1)], LoadOfWorker], Field(max_length=MAX_LOADS)]
        | None
    ) = None


class AttemptEndRecord(RecordBody):
    """The attempt is over."""

    end_reason: EndReason
    message: Text = ""
    exit_code: Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)] | None = None
    #: False when its scripts stored outputs that are not on the job's list.
    outputs_are_complete: bool = True
    #: Seconds of a loss that no new step followed.
    open_lost_s: Seconds = 0.0


class InvalidRecord(RecordBody):
    """A record that breaks its contract."""

    kind: str
    why: str


_MODELS: dict[str, type[RecordBody]] = {
    "event": EventRecord,
    "log": LogRecord,
    "metric": MetricRecord,
    "checkpoint": CheckpointRecord,
    "checkpoints": CheckpointListRecord,
    "output": OutputRecord,
    "profile": ProfileRecord,
    "progress": ProgressRecord,
    "ended": AttemptEndRecord,
}


def read(record: Record) -> RecordBody:
    """What the record says, or `InvalidRecord`; never raises."""
    model = _MODELS.get(record.kind)
    if model is CheckpointRecord and record.body.get("deleted"):
        model = CheckpointDeletedRecord
    if model is None:
        return InvalidRecord(kind=str(record.kind)[:100], why="nothing of this kind is known")
    try:
        return model.model_validate(record.body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        return InvalidRecord(kind=record.kind, why=str(clean_text(f"{where}: {first['msg']}"))[:500])
