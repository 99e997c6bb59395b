"""Tokens and roles as values: what a text proves, what a role includes, and who may give which."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.roles import Role
from service.identities import granting, permissions_page, tokens
from service.identities.permissions import PERMISSIONS
from service.identities.principals import LOCAL, Access, Forbidden, Principal
from service.identities.tokens import Standing, TokenRow
from tests.architecture.repository import pages

PROJECT_ROLES = [Role.VIEWER, Role.SUBMITTER, Role.ADMIN]
ID = "tok_01M8ASHYGA38JVWW0THBS0ZS9C"


def principal(**grants: Role) -> Principal:
    return Principal(id="user:ada", name="ada", grants=grants)


def row(**fields: object) -> TokenRow:
    presented = tokens.read(tokens.text_of(ID, b"s" * 32))
    assert presented is not None
    values = {"name": "n", "owner": f"token:{ID}", "created_by": "local", "created_at": 0.0}
    return TokenRow(**{"id": ID, "digest": presented.digest, **values, **fields})  # type: ignore[arg-type]


class TestTokens:
    @given(secret=st.binary(min_size=32, max_size=32), other=st.binary(min_size=32, max_size=32))
    def test_a_text_proves_its_own_secret_alone(self, secret: bytes, other: bytes) -> None:
        presented = tokens.read(tokens.text_of(ID, secret))
        asked = tokens.read(tokens.text_of(ID, other))
        assert presented is not None
        assert asked is not None
        stored = row(digest=presented.digest)
        assert tokens.standing(presented, stored, 0.0) is Standing.GOOD
        assert (tokens.standing(asked, stored, 0.0) is Standing.GOOD) == (secret == other)

    @given(text=st.text(max_size=120))
    def test_any_other_text_is_none(self, text: str) -> None:
        assert tokens.read(text) is None

    def test_only_a_proved_secret_learns_more(self) -> None:
        good = tokens.read(tokens.text_of(ID, b"s" * 32))
        wrong = tokens.read(tokens.text_of(ID, b"t" * 32))
        assert good is not None
        assert wrong is not None
        for fields, said in (
            ({"expires_at": 5.0}, Standing.EXPIRED),
            ({"revoked_at": 1.0}, Standing.REVOKED),
            ({"revoked_at": 1.0, "expires_at": 5.0}, Standing.REVOKED),
            ({"expires_at": 5.1}, Standing.GOOD),
        ):
            assert tokens.standing(good, row(**fields), 5.0) is said
            assert tokens.standing(wrong, row(**fields), 5.0) is Standing.UNKNOWN
        assert tokens.standing(good, None, 5.0) is Standing.UNKNOWN

    def test_neither_is_seen_in_a_text_of_an_object(self) -> None:
        presented = tokens.read(tokens.text_of(ID, b"s" * 32))
        assert presented is not None
        assert presented.digest not in repr(presented)
        assert presented.digest not in repr(row())


class TestRoles:
    def test_each_includes_those_before_it(self) -> None:
        order = list(Role)
        for at, role in enumerate(order):
            assert [one for one in order if role.includes(one)] == order[: at + 1]

    @pytest.mark.parametrize("held", PROJECT_ROLES)
    @pytest.mark.parametrize("given_role", PROJECT_ROLES)
    def test_no_principal_gives_what_it_has_not(self, held: Role, given_role: Role) -> None:
        ada = principal(red=held)
        is_allowed = granting.why_not(ada, {"red": given_role}) is None
        assert is_allowed == (held is Role.ADMIN)
        mine = granting.why_not(ada, {"red": given_role}, is_own=True) is None
        assert granting.may_have_own(ada, "user:ada")
        assert not granting.may_have_own(replace(ada, credential=ID), "user:ada")
        assert not granting.may_have_own(ada, "user:bob")
        assert not granting.may_have_own(LOCAL, "local")
        assert mine == held.includes(given_role)
        assert granting.why_not(ada, {"red": given_role, "blue": Role.VIEWER}, is_own=True) is not None
        assert granting.why_not(ada, {"*": Role.OPERATOR}, is_own=True) is not None

    def test_a_principal_sees_what_it_has_a_role_in(self) -> None:
        access = Access(principal(red=Role.VIEWER, blue=Role.ADMIN), Role.SUBMITTER)
        assert access.projects == {"red", "blue"}
        assert access.narrowed("green") == frozenset()
        assert access.narrowed("red") == {"red"}
        access.check("blue")
        with pytest.raises(Forbidden, match="needs the role submitter in the project red; you are viewer"):
            access.check("red")
        with pytest.raises(Forbidden, match="you have none there"):
            access.check("green")

    def test_ones_own_is_enough_only_where_the_table_says_so_and_one_may_submit_still(self) -> None:
        ada = principal(red=Role.SUBMITTER, blue=Role.VIEWER)
        Access(ada, Role.ADMIN, is_enough_to_own=True).check("red", "user:ada")
        for project, owner, is_enough in (
            ("red", "user:bob", True),
            ("red", None, True),
            ("red", "user:ada", False),
            ("blue", "user:ada", True),
        ):
            with pytest.raises(Forbidden):
                Access(ada, Role.ADMIN, is_enough).check(project, owner)


def test_the_page_has_the_table_of_the_code() -> None:
    page = pages()["docs/identities.md"]
    assert permissions_page.with_table(page) == page, (
        "run: python -m service.identities.permissions_page docs/identities.md"
    )
    for operation in PERMISSIONS:
        assert f"`{operation}`" in page
