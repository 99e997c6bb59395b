"""How a job's command can be kept apart on this machine: as a user of its own, in namespaces of its own, or not at all.

Pure; `remora/machine_isolation.py` tries out what a machine offers.

Source: capabilities(7), user_namespaces(7).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

#: What may be asked for.
Isolation = Literal["auto", "users", "namespaces", "none"]
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


#: What keeps the commands of a node apart: users, of which this is the range, or the namespaces of each command.
Walls: TypeAlias = UidRange | Literal["namespaces"]


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a machine offers."""

    #: The range of its jobs' users; None: it can give none.
    uids: UidRange | None
    #: Why there is none, in some words.
    why_not: str = ""
    #: Whether a command can have namespaces of its own without the rights of root.
    has_namespaces: bool = False
    #: Why not, in some words.
    why_no_namespaces: str = ""


def parse_uids(text: str) -> UidRange:
    """The range in `first-last`.  Raises ValueError with what is wrong."""
    first, _, last = text.strip().partition("-")
    if not (first.isascii() and first.isdecimal() and last.isascii() and last.isdecimal()):
        raise ValueError(f"{UIDS_VARIABLE} is two numbers with a hyphen, as in {USUAL_UIDS}")
    found = UidRange(first=int(first), last=int(last))
    if not 1000 <= found.first <= found.last < 2**32 - 1:
        raise ValueError(f"{UIDS_VARIABLE} has to be a range above 1000, as {USUAL_UIDS} is")
    return found


def decide(asked: Isolation, offer: Offer) -> Walls | None:
    """What keeps commands apart; None: nothing does (pure).

    Raises IsolationImpossible when users or namespaces were asked for and the machine cannot give them.
    """
    if asked == "none":
        return None
    if offer.uids is not None and asked != "namespaces":
        return offer.uids
    if offer.has_namespaces and asked != "users":
        return "namespaces"
    if asked == "auto":
        return None
    why = offer.why_not if asked == "users" else offer.why_no_namespaces
    what = "give the node's service these rights" if asked == "users" else "allow that on this machine"
    raise IsolationImpossible(
        f"the node runs no command: isolation is {asked}, and {why}; {what}, or set REMORA_ISOLATION to none"
    )


def sentence(asked: Isolation, offer: Offer) -> str:
    """What keeps commands apart on such a machine, for people (pure).  Raises IsolationImpossible as `decide` does."""
    walls = decide(asked, offer)
    if asked == "none":
        return "commands of jobs run as the service's own user: isolation is none"
    if walls is None:
        return (
            "commands of jobs run as the node's own user, for they cannot be kept apart here"
            f" ({offer.why_not}; {offer.why_no_namespaces}): a script can read what the node can, and reach other jobs"
        )
    if walls == "namespaces":
        why = "" if offer.uids else f", for they can have no users here ({offer.why_not})"
        return (
            f"commands of jobs run in namespaces of their own{why}: a script sees no files, processes or memory of"
            " others, and reaches every port of this machine"
        )
    return (
        f"commands of jobs run as users {walls.first} to {walls.last}, one for each job, without rights and with files"
        " of their own"
    )


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
