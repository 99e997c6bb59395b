"""The collectives that a rank began last, as its script says (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

#: Process groups of a rank that are looked at.
MOST_GROUPS = 16
_NAME = re.compile(r"[A-Za-z0-9_:.-]{1,64}")


@dataclass(frozen=True)
class LastCollective:
    """The collective of a process group that a rank began last."""

    #: Its backend and its name, as `gloo:0`.
    group: str
    #: As PyTorch calls it, such as `all_reduce`.
    what: str
    #: Its number within the group, from 1.
    number: int
    #: It has not ended.
    waits: bool

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.what} #{self.number}"


def read_collectives(said: object) -> tuple[LastCollective, ...] | None:
    """What a script has said (`remora.script.collectives`), without what is malformed; None where it said nothing."""
    if not isinstance(said, list):
        return None
    return tuple(found for one in said[:MOST_GROUPS] if (found := _read(one)) is not None)


def _read(one: Any) -> LastCollective | None:
    if not isinstance(one, dict):
        return None
    group, what, number = one.get("group"), one.get("what"), one.get("number")
    if not isinstance(group, str) or not isinstance(what, str) or type(number) is not int:
        return None
    if not _NAME.fullmatch(group) or not _NAME.fullmatch(what) or not 0 <= number < 2**53:
        return None
    return LastCollective(group, what, number, one.get("waits") is True)
