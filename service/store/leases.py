"""Exclusive rights for a time.  A token grows with every new owner, so that a former owner can be told from the new."""

from __future__ import annotations

from dataclasses import dataclass

import sqlalchemy as sa

from service.store.errors import Fenced
from service.store.rows import upsert
from service.store.tables import leases


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


def acquire(connection: sa.Connection, name: str, owner: str, now: float, lease_s: float) -> Lease | None:
    """Take the lease for `lease_s` seconds, or renew one's own; None while another owner holds it."""
    upsert(
        connection,
        leases,
        [{"name": name, "owner": "", "token": 0, "renewed_at": 0.0, "expires_at": 0.0}],
        replace=False,
    )
    statement = (
        sa.update(leases)
        .where(leases.c.name == name, sa.or_(leases.c.owner == owner, leases.c.expires_at <= now))
        .values(
            token=sa.case((leases.c.owner == owner, leases.c.token), else_=leases.c.token + 1),
            owner=owner,
            renewed_at=now,
            expires_at=now + lease_s,
        )
        .returning(leases.c.token)
    )
    token = connection.execute(statement).scalar()
    return None if token is None else Lease(name, owner, int(token))


def give_up(connection: sa.Connection, lease: Lease) -> None:
    """Let the next owner in at once; nothing happens when the lease has another owner already."""
    connection.execute(
        sa.update(leases)
        .where(leases.c.name == lease.name, leases.c.token == lease.token)
        .values(expires_at=0.0)
    )


def age_s(connection: sa.Connection, name: str, now: float) -> float | None:
    """Seconds since the lease was last renewed; None when nobody ever held it."""
    renewed_at = connection.execute(sa.select(leases.c.renewed_at).where(leases.c.name == name)).scalar()
    return None if not renewed_at else max(0.0, now - renewed_at)
