"""When the code bundles in the storage were last used.

A bundle is deleted in three steps, so that no job that uses it meanwhile loses it: its row says that it goes, the file
is deleted, and the row is deleted.  From the first one on it counts as missing; it can be uploaded after the last one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite

from service.identities.principals import Access
from service.queue.intake import Kept
from service.queue.specification import code_of
from service.store import kept_amounts
from service.store.tables import ACTIVE_JOBS, bundle_holders, bundles, jobs, schedules

_GOING = sa.select(bundles.c.digest).where(
    bundles.c.digest == sa.bindparam("of"), bundles.c.gone_at.is_not(None)
)
_FORGET = sa.delete(bundles).where(bundles.c.digest == sa.bindparam("of"), bundles.c.gone_at.is_not(None))


def bundle_name(digest: str) -> str:
    """Where the storage keeps the bundle of a digest."""
    return f"bundles/{digest.removeprefix('sha256:')}.zip"


def is_going(connection: sa.Connection, digest: str) -> bool:
    """The bundle is being deleted."""
    return connection.execute(_GOING, {"of": digest}).first() is not None


def use(connection: sa.Connection, digest: str, now: float) -> bool:
    """Record that it is used now; False when it is being deleted."""
    row = {"digest": digest, "used_at": now}
    return connection.execute(_use(connection.dialect.name), row).first() is not None


def hold(connection: sa.Connection, digest: str, holder: str, most: int | None = None) -> None:
    """A principal has uploaded it, which proves that it has it; or a project uses it.

    Raises LimitReached when the holder would have more than `most` bytes of bundles; the transaction has to end then.
    """
    size = _locked_size(connection, digest)
    row = {"digest": digest, "holder": holder}
    if connection.execute(_hold(connection.dialect.name), row).first() is not None:
        kept_amounts.take(connection, holder, Kept.BUNDLE_BYTES, size, most)


def measure(connection: sa.Connection, digest: str, size: int) -> None:
    """Its size in bytes is known; it counts for all who hold it."""
    more = size - _locked_size(connection, digest)
    if more:
        connection.execute(sa.update(bundles).where(bundles.c.digest == digest).values(size_bytes=size))
        _count(connection, _holders(connection, digest), more)


def _locked_size(connection: sa.Connection, digest: str) -> int:
    """Locked, so that nothing is added to its holders beside a change of its size."""
    mine = sa.select(bundles.c.size_bytes).where(bundles.c.digest == digest).with_for_update()
    return int(connection.execute(mine).scalar() or 0)


def _holders(connection: sa.Connection, digest: str) -> list[str]:
    mine = sa.select(bundle_holders.c.holder).where(bundle_holders.c.digest == digest)
    return list(connection.execute(mine).scalars())


def _count(connection: sa.Connection, holders: Iterable[str], more: int) -> None:
    kept_amounts.add(connection, {(one, Kept.BUNDLE_BYTES): more for one in holders})


@lru_cache
def _hold(dialect: str) -> sa.sql.dml.ReturningInsert[tuple[str]]:
    statement = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(bundle_holders)
    keys = ["digest", "holder"]
    return statement.on_conflict_do_nothing(index_elements=keys).returning(bundle_holders.c.digest)


def is_held(connection: sa.Connection, access: Access, digest: str) -> bool:
    """The bundle is there for this principal: it has uploaded it, or a project that it sees uses it."""
    if access.projects is None:
        return True
    holders = [access.principal.id, *(kept_amounts.project_holder(one) for one in sorted(access.projects))]
    mine = bundle_holders.c.digest == digest, bundle_holders.c.holder.in_(holders)
    return connection.execute(sa.select(bundle_holders.c.digest).where(*mine).limit(1)).first() is not None


@lru_cache
def _use(dialect: str) -> sa.sql.dml.ReturningInsert[tuple[str]]:
    statement = (sqlite.insert if dialect == "sqlite" else postgresql.insert)(bundles)
    return statement.on_conflict_do_update(
        index_elements=["digest"],
        set_={"used_at": statement.excluded.used_at},
        where=bundles.c.gone_at.is_(None),
    ).returning(bundles.c.digest)


def choose(connection: sa.Connection, before: float, now: float, most: int) -> list[str]:
    """Mark up to `most` bundles as going that were not used since `before` and that no job or schedule needs.

    Those that were marked before and are there still are among them: their files may be.
    """
    going = connection.execute(sa.select(bundles.c.digest).where(bundles.c.gone_at.is_not(None)).limit(most))
    found = list(going.scalars())
    old = sa.select(bundles.c.digest).where(bundles.c.used_at < before, bundles.c.gone_at.is_(None))
    candidates = list(connection.execute(old.order_by(bundles.c.used_at).limit(most - len(found))).scalars())
    if not candidates:
        return found
    needed = {
        code_of(spec)
        for statement in (sa.select(jobs.c.spec).where(ACTIVE_JOBS), sa.select(schedules.c.spec))
        for spec in connection.execute(statement).scalars()
    }
    for digest in candidates:
        if digest in needed:
            # Looked at again when its time is over again.
            use(connection, digest, now)
            continue
        marked = connection.execute(
            sa.update(bundles)
            .where(bundles.c.digest == digest, bundles.c.used_at < before, bundles.c.gone_at.is_(None))
            .values(gone_at=now)
        )
        if marked.rowcount == 1:
            found.append(digest)
    return found


def forget(connection: sa.Connection, digest: str) -> None:
    """Its file is gone."""
    size = _locked_size(connection, digest)
    if connection.execute(_FORGET, {"of": digest}).rowcount:
        _count(connection, _holders(connection, digest), -size)
        connection.execute(sa.delete(bundle_holders).where(bundle_holders.c.digest == digest))
