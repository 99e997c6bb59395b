"""What the principal of a request may do: looked up in the table of permissions before a route answers.

The table says which role is needed; whose an object is, the queries of `service.store.scoped` find out.
"""

from __future__ import annotations

from fastapi import Request

from remora.roles import Role
from service.api.authentication import principal_of
from service.identities.permissions import PERMISSIONS, Permission, Where
from service.identities.principals import Access, Forbidden, Principal


async def authorise(request: Request) -> None:
    """A dependency of every route: keeps the access of its request.  Raises ApiProblem 401, and Forbidden."""
    operation = operation_of(request)
    permission = PERMISSIONS.get(operation)
    if permission is None:
        raise Forbidden(f"nothing says who may use {operation}")
    if permission.is_open:
        return
    principal = principal_of(request)
    refused = _refusal(permission, principal)
    if refused is not None:
        raise Forbidden(refused)
    request.scope["remora.access"] = Access(
        principal, permission.role or Role.VIEWER, permission.is_enough_to_own
    )


def operation_of(request: Request) -> str:
    """The id of the operation that answers the request."""
    return getattr(request.scope.get("route"), "operation_id", None) or "an operation without an id"


def access_of(request: Request) -> Access:
    """What the principal of the request sees and may do; set by `authorise`."""
    access: Access = request.scope["remora.access"]
    return access


def _refusal(permission: Permission, principal: Principal) -> str | None:
    """Why the principal cannot use the operation at all; None: that depends on the object."""
    if permission.role is Role.OPERATOR and not principal.is_operator:
        return "only operators may do this"
    if permission.where is not Where.LISTED or permission.role in (None, Role.VIEWER):
        return None
    if (projects := principal.projects_with(permission.role)) is not None and not projects:
        return f"this needs the role {permission.role.value} in some project, and you have it in none"
    return None
