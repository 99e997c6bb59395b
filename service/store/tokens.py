"""API tokens: stored, found by who presents them, listed and revoked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable

import sqlalchemy as sa

from cluster.policies.policies import Policies
from remora.roles import EVERYWHERE
from service.identities.tokens import TokenRow
from service.queue.intake import Kept
from service.store import kept_amounts
from service.store.rows import in_parts, insert_into
from service.store.tables import token_grants, tokens

#: A row with each grant, or one without any.
_JOINED = sa.select(tokens, token_grants.c.project, token_grants.c.role).select_from(
    tokens.outerjoin(token_grants, token_grants.c.token_id == tokens.c.id)
)
_TOKEN = _JOINED.where(tokens.c.id == sa.bindparam("of")).order_by(token_grants.c.project)
_USED = (
    sa.update(tokens)
    .where(
        tokens.c.id == sa.bindparam("of"),
        sa.or_(tokens.c.last_used_at.is_(None), tokens.c.last_used_at < sa.bindparam("before")),
    )
    .values(last_used_at=sa.bindparam("now"))
)


def insert(connection: sa.Connection, token: TokenRow, policies: Policies | None = None) -> None:
    """Store a new token with its grants; `policies` are None where the creator is an operator.

    Raises LimitReached when there would be more than the limits of the creator, or of a project, allow.
    """
    for holder in _holders(token):
        most = None if policies is None else _most(policies, holder)
        kept_amounts.take(connection, holder, Kept.TOKENS, 1, most)
    row = {column.name: getattr(token, column.name) for column in tokens.columns}
    connection.execute(insert_into(tokens), row)
    rows = [
        {"token_id": token.id, "project": project, "role": role} for project, role in token.grants.items()
    ]
    if rows:
        connection.execute(insert_into(token_grants), rows)


def get(connection: sa.Connection, token_id: str) -> TokenRow | None:
    """The token by its id, or None; one statement."""
    found = _together(connection.execute(_TOKEN, {"of": token_id}).all())
    return found[0] if found else None


def note_use(connection: sa.Connection, token_id: str, now: float, *, before: float) -> None:
    """It is used now, unless it was noted since `before`."""
    connection.execute(_USED, {"of": token_id, "now": now, "before": before})


def _holders(token: TokenRow) -> list[str]:
    """Of whose tokens it is one: those of its creator and those of its projects; in the order of their locks."""
    projects = [kept_amounts.project_holder(one) for one in token.grants if one != EVERYWHERE]
    return sorted([token.created_by, *projects])


def _most(policies: Policies, holder: str) -> int | None:
    project = kept_amounts.project_of(holder)
    return policies.principals.tokens if project is None else policies.limits_of(project).tokens


def revoke(connection: sa.Connection, token_id: str, now: float) -> None:
    """It is good for nothing from now on; one that was revoked before stays so."""
    mine = tokens.c.id == token_id, tokens.c.revoked_at.is_(None)
    if connection.execute(sa.update(tokens).where(*mine).values(revoked_at=now)).rowcount:
        token = get(connection, token_id)
        assert token is not None
        _count_out(connection, [token])


def _count_out(connection: sa.Connection, gone: Iterable[TokenRow]) -> None:
    less = Counter((holder, Kept.TOKENS) for token in gone for holder in _holders(token))
    kept_amounts.add(connection, {one: -count for one, count in less.items()})


def forget(connection: sa.Connection, before: float, most: int) -> int:
    """Delete tokens that were revoked or had expired before a time, `most` at most; how many."""
    is_over = sa.or_(tokens.c.revoked_at < before, tokens.c.expires_at < before)
    # The first operator's stays: without its row, the next start would make another one.
    is_operators = sa.exists().where(
        token_grants.c.token_id == tokens.c.id, token_grants.c.project == EVERYWHERE
    )
    is_over = sa.and_(is_over, ~sa.and_(is_operators, tokens.c.expires_at.is_(None)))
    # Locked: one that is revoked meanwhile is not counted out twice.
    over = sa.select(tokens.c.id).where(is_over).order_by(tokens.c.id).limit(most).with_for_update()
    ids = list(connection.execute(over).scalars())
    for part in in_parts(ids):
        found = _together(connection.execute(_JOINED.where(tokens.c.id.in_(part))).all())
        _count_out(connection, [one for one in found if one.revoked_at is None])
        connection.execute(sa.delete(token_grants).where(token_grants.c.token_id.in_(part)))
        connection.execute(sa.delete(tokens).where(tokens.c.id.in_(part)))
    return len(ids)


def page(
    connection: sa.Connection, owner: str, projects: Collection[str] | None, before: str | None, limit: int
) -> list[TokenRow]:
    """Tokens of this owner and those with a role in one of the projects (None: all tokens), newest first."""
    conditions = [] if before is None else [tokens.c.id < before]
    if projects is not None:
        granted = sa.select(token_grants.c.token_id).where(token_grants.c.project.in_(sorted(projects)))
        is_own = sa.or_(tokens.c.owner == owner, tokens.c.created_by == owner)
        conditions.append(sa.or_(is_own, tokens.c.id.in_(granted)))
    chosen = sa.select(tokens.c.id).where(*conditions).order_by(tokens.c.id.desc()).limit(limit)
    ids = list(connection.execute(chosen).scalars())
    found: list[TokenRow] = []
    for part in in_parts(ids):
        ordered = _JOINED.where(tokens.c.id.in_(part)).order_by(tokens.c.id.desc(), token_grants.c.project)
        found += _together(connection.execute(ordered).all())
    return found


def _together(rows: Collection[sa.Row[tuple[object, ...]]]) -> list[TokenRow]:
    """One value for all rows of a token, in their order."""
    found: dict[str, dict[str, object]] = {}
    for row in rows:
        values = dict(row._mapping)
        project, role = values.pop("project"), values.pop("role")
        token = found.setdefault(str(values["id"]), {**values, "grants": {}})
        if project is not None:
            token["grants"][project] = role  # type: ignore[index]
    return [TokenRow(**values) for values in found.values()]  # type: ignore[arg-type]
