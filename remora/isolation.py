"""How a job's command can be kept apart from its node on this machine: as a user of its own, or not at all.

Pure; `remora/machine_isolation.py` tries out what a machine offers.

Source: capabilities(7), user_namespaces(7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What may be asked for.
Isolation = Literal["auto", "users", "none"]
#: Environment variable of a node with the range of its jobs' users, and the range without it.  No distribution gives
#: these numbers to anything: https://systemd.io/UIDS-GIDS
UIDS_VARIABLE, USUAL_UIDS = "REMORA_JOB_UIDS", "2000000000-2000000999"
#: Numbers of the capabilities without which no command can be given to another user, with their names.
_NEEDED = {
    0: "CAP_CHOWN",
    1: "CAP_DAC_OVERRIDE",
    3: "CAP_FOWNER",
    5: "CAP_KILL",
    6: "CAP_SETGID",
    7: "CAP_SETUID",
    19: "CAP_SYS_PTRACE",
    21: "CAP_SYS_ADMIN",
}


class IsolationImpossible(Exception):
    """Commands cannot be kept apart here as it was asked for; the message is one sentence with what to do."""


@dataclass(frozen=True, kw_only=True)
class UidRange:
    """The users that the jobs of a node may be; their groups have the same numbers."""

    first: int
    last: int


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a machine offers."""

    #: The range of its jobs' users; None: commands run as the node's own user.
    uids: UidRange | None
    #: Why there is none, in some words.
    why_not: str = ""

    @property
    def sentence(self) -> str:
        """What keeps commands apart here, for people."""
        if self.uids is None:
            return (
                f"commands of jobs run as the node's own user, for they cannot be kept apart here ({self.why_not}):"
                " a script can read what the node can, and reach other jobs"
            )
        return (
            f"commands of jobs run as users {self.uids.first} to {self.uids.last}, one for each job, without rights and"
            " with files of their own"
        )


def parse_uids(text: str) -> UidRange:
    """The range in `first-last`.  Raises ValueError with what is wrong."""
    first, _, last = text.strip().partition("-")
    if not (first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal()):
        raise ValueError(f"{UIDS_VARIABLE} is two numbers with a hyphen, as in {USUAL_UIDS}")
    found = UidRange(first=int(first), last=int(last))
    if not 1000 <= found.first <= found.last < 2**32 - 1:
        raise ValueError(f"{UIDS_VARIABLE} has to be a range above 1000, as {USUAL_UIDS} is")
    return found


def decide(asked: Isolation, offer: Offer) -> UidRange | None:
    """The range of users for commands; None: they run as the node's user (pure).

    Raises IsolationImpossible when users were asked for and the machine has none to offer.
    """
    if asked == "none":
        return None
    if asked == "users" and offer.uids is None:
        raise IsolationImpossible(
            f"the node runs no command: isolation is users, and {offer.why_not}; give the node's service these rights,"
            " or set REMORA_ISOLATION to none"
        )
    return offer.uids


def missing(status: str, uid_map: str, uids: UidRange) -> str:
    """What a process lacks to give its commands to these users; "": nothing (pure).

    `status` and `uid_map` are the texts of its files of these names in /proc.
    """
    line = next((one for one in status.splitlines() if one.startswith("CapEff:")), "CapEff: 0")
    effective = int(line.split()[1], 16)
    lacking = [name for number, name in _NEEDED.items() if not effective >> number & 1]
    if lacking:
        return f"it has not the rights of root, nor {', '.join(lacking)}"
    for entry in uid_map.splitlines():
        first, _, count = (int(word) for word in entry.split())
        if first <= uids.first and uids.last < first + count:
            return ""
    return f"its user namespace has no users {uids.first} to {uids.last}"
