"""What a principal may do in a project, from least to most; the words of the API, the database and the CLI.  Pure."""

from __future__ import annotations

from enum import StrEnum

#: Stands where a role is for the whole service and not for one project; no name of a project.
EVERYWHERE = "*"


class Role(StrEnum):
    """Each includes those before it."""

    #: Read what is in the project.
    VIEWER = "viewer"
    #: Submit jobs there, and change those that are there.
    SUBMITTER = "submitter"
    #: Delete what others submitted, give tokens and roles for the project, and read its audit.
    ADMIN = "admin"
    #: All projects, and the cluster: policies, pools, drills, plans, old data.
    OPERATOR = "operator"

    def includes(self, other: Role) -> bool:
        """True when this one may do all that the other may."""
        order = tuple(Role)
        return order.index(self) >= order.index(other)
