"""Leases: exclusive rights for a time.  A token grows with every new owner, so that a former owner can be recognized.

No two clocks are compared: the owner counts its renewals, and a process that waits for the lease takes it when the row
has not changed for as long as a lease lasts, by the waiting process's own monotonic clock.  A machine whose clock is
wrong, or jumps, neither keeps a lease for longer nor loses it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from remora.clusters import DEFAULT_CLUSTER
from service.store.failures import Fenced
from service.store.rows import upsert
from service.store.tables import leases

#: The lease of what is done once for all clusters; one of their controllers holds it.
SERVICE = "service"


def controller_of(cluster: str) -> str:
    """The lease of the controllers of a cluster."""
    return "controller" if cluster == DEFAULT_CLUSTER else f"controller:{cluster}"


@dataclass(frozen=True)
class Lease:
    """The right that a process holds; every transaction of a loop begins with `guard`."""

    name: str
    owner: str
    token: int

    def guard(self, connection: sa.Connection) -> None:
        """Keep the lease from changing hands until this transaction ends.  Raises Fenced when it already has."""
        held = connection.execute(
            sa.select(leases.c.token)
            .where(leases.c.name == self.name, leases.c.token == self.token)
            .with_for_update(read=True)
        ).first()
        if held is None:
            raise Fenced(f"the lease {self.name!r} has another owner than {self.owner}")


@dataclass(frozen=True, kw_only=True)
class LeaseRow:
    """A lease as everybody sees it."""

    name: str
    #: Empty: no process holds it.
    owner: str
    token: int
    #: Grows with every renewal.
    renewals: int
    #: Seconds since 1970 by the owner's clock, for people; nothing is decided by it.
    renewed_at: float
    #: Digests of the settings of its newest owner, by their names; None: it has none, or a release before wrote it.
    settings: Mapping[str, str] | None = None

    @property
    def is_free(self) -> bool:
        """No process holds it."""
        return not self.owner


class LeaseWatch:
    """For how long a lease has not changed, by the monotonic clock of the process that looks at it."""

    def __init__(self) -> None:
        self._seen: tuple[str, int, int] | None = None
        self._since = 0.0

    def unchanged_s(self, row: LeaseRow, now: float, before_s: float = 0.0) -> float:
        """Seconds since the row was seen to change; `now` is the time of a monotonic clock.

        At the first look it is taken not to have changed for `before_s`.
        """
        seen = (row.owner, row.token, row.renewals)
        if self._seen is None:
            self._since = now - before_s
        elif seen != self._seen:
            self._since = now
        self._seen = seen
        return now - self._since


def get(connection: sa.Connection, name: str) -> LeaseRow | None:
    """The lease; None when no process ever held it."""
    row = connection.execute(sa.select(leases).where(leases.c.name == name)).first()
    return None if row is None else LeaseRow(**row._mapping)


def find(connection: sa.Connection, names: Collection[str]) -> dict[str, LeaseRow]:
    """Those of the leases that a process ever held, by name."""
    rows = connection.execute(sa.select(leases).where(leases.c.name.in_(names)))
    return {row.name: LeaseRow(**row._mapping) for row in rows}


def take(
    connection: sa.Connection,
    seen: LeaseRow | None,
    name: str,
    owner: str,
    now: float,
    settings: Mapping[str, str] | None = None,
) -> Lease | None:
    """Take a lease that is still as it was seen (None: no process ever held it); None when it has changed meanwhile.

    Whether it may be taken is for the caller to know.
    """
    before = LeaseRow(name=name, owner="", token=0, renewals=0, renewed_at=0.0) if seen is None else seen
    if seen is None:
        fields = {"name": name, "owner": "", "token": 0, "renewals": 0, "renewed_at": 0.0}
        upsert(connection, leases, [fields], replace=False)
    taken = connection.execute(
        sa.update(leases)
        .where(
            leases.c.name == name,
            leases.c.owner == before.owner,
            leases.c.token == before.token,
            leases.c.renewals == before.renewals,
        )
        .values(
            owner=owner,
            token=before.token + 1,
            renewals=before.renewals + 1,
            renewed_at=now,
            settings=None if settings is None else dict(settings),
        )
    )
    return Lease(name, owner, before.token + 1) if taken.rowcount == 1 else None


def renew(connection: sa.Connection, lease: Lease, now: float) -> bool:
    """Say that its owner lives; False when it has another owner, or none."""
    renewed = connection.execute(
        sa.update(leases)
        .where(leases.c.name == lease.name, leases.c.owner == lease.owner, leases.c.token == lease.token)
        .values(renewals=leases.c.renewals + 1, renewed_at=now)
    )
    return renewed.rowcount == 1


def give_up(connection: sa.Connection, lease: Lease) -> None:
    """Let the next owner in at once; nothing happens when the lease has another owner already."""
    connection.execute(
        sa.update(leases).where(leases.c.name == lease.name, leases.c.token == lease.token).values(owner="")
    )


def tokens(connection: sa.Connection) -> dict[str, int]:
    """The token of each lease by its name."""
    return {row.name: row.token for row in connection.execute(sa.select(leases.c.name, leases.c.token))}


def raise_tokens(connection: sa.Connection, least: Mapping[str, int]) -> None:
    """Let the next owner of each lease have a later token than these.

    In a database that was put back to an earlier time tokens would go back, too, and drivers would take a controller of
    now for an earlier one.
    """
    for name, token in least.items():
        connection.execute(
            sa.update(leases).where(leases.c.name == name, leases.c.token < token).values(token=token)
        )
