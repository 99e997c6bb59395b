"""Faults to inject into the next local nodes, to test how the service handles them.

They are in a file of the home, so that an operator can set them while the service runs.  Each is the number of nodes
that it is still for; a requested node gets the first one that is not used up.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cluster.provider import ProviderError

#: The largest value of each setting, nodes or seconds.
_MOST = 1_000_000


class LocalFault(StrEnum):
    """What goes wrong with one node."""

    #: There is no machine for it: the provider refuses, and makes nothing.
    REFUSE = "refuse"
    #: It is made and dies while it starts.
    DIE = "die"
    #: Its machine runs and never joins the Ray cluster.
    NEVER_JOIN = "never_join"
    #: Its machine joins `late_s` later than it would.
    JOIN_LATE = "join_late"


class LocalFaults(BaseModel):
    """How many of the next nodes get each fault."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    refuse: int = Field(default=0, ge=0, le=_MOST)
    die: int = Field(default=0, ge=0, le=_MOST)
    never_join: int = Field(default=0, ge=0, le=_MOST)
    join_late: int = Field(default=0, ge=0, le=_MOST)
    #: Seconds that those of `join_late` come later.
    late_s: float = Field(default=30.0, ge=0, le=_MOST, allow_inf_nan=False)

    def first(self) -> tuple[LocalFault | None, LocalFaults]:
        """What the next node gets, if anything, and what is left for those after it."""
        for fault in LocalFault:
            left: int = getattr(self, fault.value)
            if left:
                return fault, self.model_copy(update={fault.value: left - 1})
        return None, self


def read_faults(path: Path) -> LocalFaults:
    """The current settings; without a file nothing goes wrong.  Raises ProviderError for an invalid file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return LocalFaults()
    except OSError as error:
        raise ProviderError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return LocalFaults.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        said = f"{field}: {first['msg']}" if field else first["msg"]
        raise ProviderError(f"{path}: {said}; remove it, or write it as docs/local-cluster.md says") from None


def write_faults(path: Path, faults: LocalFaults) -> None:
    """Write the settings atomically.  Raises ProviderError when that is not possible."""
    draft = path.with_suffix(".draft")
    try:
        draft.write_text(faults.model_dump_json() + "\n")
        draft.replace(path)
    except OSError as error:
        raise ProviderError(f"{path} cannot be written: {error.strerror}") from error


def take_fault(path: Path) -> tuple[LocalFault | None, LocalFaults]:
    """What the next node gets, which is used up thereby; to be called with the cluster's lock held."""
    before = read_faults(path)
    fault, after = before.first()
    if fault is not None:
        write_faults(path, after)
    return fault, before
