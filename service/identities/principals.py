"""Principals, and what one of them sees and may do in one request (pure)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from remora.roles import EVERYWHERE, Role

#: Projects in which one principal may have roles: each is a part of the queries of its lists.
MOST_PROJECTS = 50


class Forbidden(Exception):
    """A principal sees what it asks for and may not do this to it; the message is one sentence for it."""


@dataclass(frozen=True, kw_only=True)
class Principal:
    """Someone or something that sends requests, as far as it has proved who it is."""

    #: Kind and name, `token:tok_...` or `user:...`; `local` stands for everyone where nothing is proved.
    id: str
    #: For people.
    name: str
    #: The role in each project.  Nothing stands for `operator` here.
    grants: Mapping[str, Role] = field(default_factory=dict)
    is_operator: bool = False
    #: Id of the token by which it proved this; None: by something else.
    credential: str | None = None
    #: Groups of which a user is a member, as its issuer said: `group:...`.
    groups: tuple[str, ...] = ()

    @classmethod
    def with_roles(
        cls,
        id: str,
        name: str,
        roles: Mapping[str, Role],
        credential: str | None = None,
        groups: Collection[str] = (),
    ) -> Principal:
        """One with these roles; `*` as project stands for the whole service."""
        grants = {project: role for project, role in roles.items() if project != EVERYWHERE}
        is_operator = roles.get(EVERYWHERE) is Role.OPERATOR
        return cls(
            id=id,
            name=name,
            grants=grants,
            is_operator=is_operator,
            credential=credential,
            groups=tuple(sorted(groups)),
        )

    def role_in(self, project: str) -> Role | None:
        """The role there; None: it does not even see the project."""
        return Role.OPERATOR if self.is_operator else self.grants.get(project)

    def has(self, role: Role, project: str) -> bool:
        """Whether it may do there what the role may; `*` as project asks about the whole service."""
        if project == EVERYWHERE:
            return self.is_operator
        held = self.role_in(project)
        return held is not None and held.includes(role)

    def projects_with(self, role: Role) -> frozenset[str] | None:
        """Projects in which it may do what the role may; None: in all."""
        if self.is_operator:
            return None
        return frozenset(project for project, held in self.grants.items() if held.includes(role))


#: Everyone, where the service asks for no authentication and listens to its own machine alone.
LOCAL = Principal(id="local", name="local", is_operator=True)


@dataclass(frozen=True)
class Access:
    """What the principal of one request sees, and what it may do to what it sees."""

    principal: Principal
    #: What it needs in the project of the object that it asks for.
    role: Role = Role.VIEWER
    #: Its own objects need only `submitter`.
    is_enough_to_own: bool = False

    @property
    def reading(self) -> Access:
        """What it sees of what it only reads for this."""
        return Access(self.principal)

    @property
    def projects(self) -> frozenset[str] | None:
        """Projects whose objects are there for it; None: all."""
        return self.principal.projects_with(Role.VIEWER)

    def sees(self, project: str) -> bool:
        """Whether the objects of that project are there for it."""
        return self.principal.has(Role.VIEWER, project)

    def narrowed(self, project: str | None) -> frozenset[str] | None:
        """Projects of a list that is asked for one project, or for all; None: all there are."""
        visible = self.projects
        if project is None:
            return visible
        return frozenset({project}) if visible is None or project in visible else frozenset()

    def check(self, project: str, owner: str | None = None) -> None:
        """Raise Forbidden when it may not do this in a project that it sees, to an object of that owner."""
        if self.principal.has(self.role, project):
            return
        is_own = self.is_enough_to_own and owner == self.principal.id
        if is_own and self.principal.has(Role.SUBMITTER, project):
            return
        held = self.principal.role_in(project)
        mine = "you have none there" if held is None else f"you are {held.value}"
        own = f", or {Role.SUBMITTER.value} of one's own" if self.is_enough_to_own else ""
        raise Forbidden(f"this needs the role {self.role.value} in the project {project}{own}; {mine}")


#: For the service's own work.
EVERYTHING = Access(LOCAL, Role.OPERATOR)
