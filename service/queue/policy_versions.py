"""Versions of the operators' policies: which one may follow which (pure)."""

from __future__ import annotations

from dataclasses import dataclass

from service.queue.rows import NewEvent


@dataclass(frozen=True, kw_only=True)
class PolicyRow:
    """One version of the policies; never changed."""

    #: 1, 2, ...; 0 stands for the policies that are made from the settings, and has no row.
    version: int
    #: The version that its author had seen.
    based_on: int
    #: The version whose document it has, when it is a rollback.
    restores: int | None = None
    created_at: float
    #: As the client sent it.
    author: str = ""
    comment: str = ""
    #: `sha256:...` of the document.
    digest: str
    #: The text as it was given.
    document: str


@dataclass(frozen=True, kw_only=True)
class PolicyRequest:
    """Policies that a client asks to put in force."""

    document: str
    digest: str
    based_on: int
    restores: int | None = None
    author: str = ""
    comment: str = ""


@dataclass(frozen=True, kw_only=True)
class PolicyDecision:
    """The version in force from now on, and the event of the change; None: it was in force before."""

    row: PolicyRow
    event: NewEvent | None = None


class PolicyVersionConflict(Exception):
    """Another client changed the policies meanwhile."""

    def __init__(self, newest: PolicyRow, based_on: int) -> None:
        self.newest = newest
        super().__init__(
            f"the policies are at version {newest.version}, and this change was made to version {based_on}"
        )


def next_version(newest: PolicyRow, request: PolicyRequest, now: float) -> PolicyDecision:
    """The version that a request becomes.  Raises PolicyVersionConflict when it is based on an older version.

    A document that is in force already makes no new version, so that a repeated request changes nothing.
    """
    if request.digest == newest.digest:
        return PolicyDecision(row=newest)
    if request.based_on != newest.version:
        raise PolicyVersionConflict(newest, request.based_on)
    row = PolicyRow(
        version=newest.version + 1,
        based_on=request.based_on,
        restores=request.restores,
        created_at=now,
        author=request.author,
        comment=request.comment,
        digest=request.digest,
        document=request.document,
    )
    return PolicyDecision(row=row, event=_event(row, now))


def _event(row: PolicyRow, now: float) -> NewEvent:
    by = f" by {row.author}" if row.author else ""
    why = f": {row.comment}" if row.comment else ""
    if row.restores is None:
        return NewEvent(
            at=now,
            kind="policies.applied",
            message=f"version {row.version} of the policies was applied{by}{why}",
            data={"version": row.version, "based_on": row.based_on, "digest": row.digest},
        )
    return NewEvent(
        at=now,
        kind="policies.rolled_back",
        message=f"the policies were rolled back to those of version {row.restores}{by}{why}",
        data={"version": row.version, "restores": row.restores, "digest": row.digest},
    )
