"""Tokens and roles as values: what a text proves, what a role includes, and who may give which."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remora.roles import EVERYWHERE, Role
from service.identities import granting, permissions_page, tokens
from service.identities.permissions import PERMISSIONS
from service.identities.principals import LOCAL, Access, Forbidden, Principal
from service.identities.tokens import Standing, TokenRow
from tests.architecture.repository import ROOT

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

    def test_a_list_for_one_project_is_that_project_where_it_is_seen_and_all_are_seen_by_operators(
        self,
    ) -> None:
        assert Access(LOCAL).projects is None
        assert Access(LOCAL).narrowed(None) is None
        assert Access(LOCAL).narrowed("any") == {"any"}
        ada = Access(principal(red=Role.VIEWER), Role.ADMIN)
        assert ada.narrowed(None) == {"red"}
        assert (ada.sees("red"), ada.sees("blue")) == (True, False)
        assert ada.reading == Access(ada.principal)

    @given(
        roles=st.dictionaries(
            st.sampled_from(["red", "blue", EVERYWHERE]), st.sampled_from(Role), max_size=3
        ),
        asked=st.sampled_from(Role),
    )
    def test_the_whole_service_is_for_operators_alone(self, roles: dict[str, Role], asked: Role) -> None:
        one = Principal.with_roles("user:ada", "ada", roles, credential=ID)
        is_operator = roles.get(EVERYWHERE) is Role.OPERATOR
        assert one.credential == ID
        assert one.has(asked, EVERYWHERE) is one.is_operator is is_operator
        for project in ("red", "blue"):
            held = Role.OPERATOR if is_operator else roles.get(project)
            assert one.role_in(project) is held
            assert one.has(asked, project) is (held is not None and held.includes(asked))
        projects = {name for name, held in roles.items() if name != EVERYWHERE and held.includes(asked)}
        assert one.projects_with(asked) == (None if is_operator else projects)


class TestTokensOfOthers:
    """A token is seen by who made it, by who owns it, and by admins of a project that it reaches."""

    @given(
        roles=st.dictionaries(st.sampled_from(["red", "blue"]), st.sampled_from(PROJECT_ROLES)),
        reaches=st.dictionaries(st.sampled_from(["red", "blue"]), st.sampled_from(PROJECT_ROLES), min_size=1),
        is_operator=st.booleans(),
        owner=st.sampled_from(["user:ada", "user:bob"]),
        maker=st.sampled_from(["user:ada", "user:bob"]),
    )
    def test_admins_of_one_project_see_it_and_those_of_all_may_revoke_it(
        self,
        roles: dict[str, Role],
        reaches: dict[str, Role],
        is_operator: bool,
        owner: str,
        maker: str,
    ) -> None:
        ada = Principal(id="user:ada", name="ada", grants=roles, is_operator=is_operator)
        token = row(owner=owner, created_by=maker, grants=reaches)
        is_own = is_operator or "user:ada" in (owner, maker)
        administers = [roles.get(project) is Role.ADMIN for project in reaches]
        assert granting.is_own(ada, token) is is_own
        assert granting.sees_token(ada, token) is (is_own or any(administers))
        refused = granting.why_not_revoke(ada, token)
        assert (refused is None) is (is_own or all(administers))
        assert refused is None or "ask an operator" in refused

    def test_a_good_token_stands_for_its_owner_and_is_its_credential(self) -> None:
        one = tokens.principal_of(row(owner="user:ada", grants={"red": Role.ADMIN, "*": Role.OPERATOR}))
        assert one == Principal(
            id="user:ada", name="n", grants={"red": Role.ADMIN}, is_operator=True, credential=ID
        )


class TestWhatRolesAreGivenTo:
    @pytest.mark.parametrize(
        ("subject", "is_one"),
        [
            ("user:ada", True),
            ("group:https://login.example/team a", True),
            (f"user:{'a' * 280}", True),
            (f"user:{'a' * 281}", False),
            ("user:", False),
            ("user: ada", False),
            ("user:ada ", False),
            ("user:a\nb", False),
            ("user:a\u2028b", False),
            ("token:tok_1", False),
            ("ada", False),
        ],
    )
    def test_users_and_groups_have_printable_names(self, subject: str, is_one: bool) -> None:
        assert granting.is_subject(subject) is is_one
        assert granting.is_user(subject) is (is_one and subject.startswith("user:"))

    @pytest.mark.parametrize(
        ("grants", "problem"),
        [
            ({}, "a token needs a role"),
            ({f"p{at}": Role.VIEWER for at in range(51)}, "at most 50 projects"),
            ({f"p{at}": Role.VIEWER for at in range(50)}, None),
            ({"*": Role.OPERATOR}, None),
            ({"*": Role.ADMIN}, "the role operator is for the whole service"),
            ({"red": Role.OPERATOR}, "the role operator is for the whole service"),
            ({"red": Role.VIEWER, "no name": Role.VIEWER}, "'no name' is no name of a project"),
        ],
    )
    def test_roles_that_no_token_can_have_are_refused(
        self, grants: dict[str, Role], problem: str | None
    ) -> None:
        said = granting.problem_of(grants)
        assert said is None if problem is None else problem in (said or "")

    def test_operators_are_made_by_operators_and_roles_by_admins(self) -> None:
        assert granting.why_not(LOCAL, {"*": Role.OPERATOR}) is None
        assert granting.why_not(principal(red=Role.ADMIN), {"red": Role.VIEWER, "*": Role.OPERATOR}) == (
            "only operators make operators"
        )
        assert granting.why_not(LOCAL, {"*": Role.OPERATOR, "red": Role.ADMIN}) is None
        assert "its admin" in (
            granting.why_not(principal(red=Role.ADMIN), {"blue": Role.VIEWER, "red": Role.ADMIN}) or ""
        )


def test_a_page_without_its_marks_is_refused() -> None:
    page = f"before\n{permissions_page.BEGIN}\nold\n{permissions_page.END}\nafter\n"
    written = permissions_page.with_table(page)
    assert (written.startswith("before\n"), written.endswith("\nafter\n")) == (True, True)
    assert "old" not in written
    with pytest.raises(ValueError, match="the page has no"):
        permissions_page.with_table(f"before\n{permissions_page.BEGIN}\n")


def test_the_page_has_the_table_of_the_code() -> None:
    page = (ROOT / "docs/identities.md").read_text()
    assert permissions_page.with_table(page) == page, (
        "run: python -m service.identities.permissions_page docs/identities.md"
    )
    for operation in PERMISSIONS:
        assert f"`{operation}`" in page
