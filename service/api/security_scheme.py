"""What the description of the API says about proofs: each operation that needs one takes a token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI

from service.identities.permissions import PERMISSIONS

_SCHEME = "token"


def describe(app: FastAPI) -> None:
    """Add it to the document that `/openapi.json` answers with."""
    made: Callable[[], dict[str, Any]] = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        schemes = document.setdefault("components", {}).setdefault("securitySchemes", {})
        if _SCHEME not in schemes:
            schemes[_SCHEME] = {
                "type": "http",
                "scheme": "bearer",
                "description": "A token of the service, or of an issuer that it trusts; not where it asks for none.",
            }
            for path in document.get("paths", {}).values():
                for operation in path.values():
                    _describe_operation(operation)
        return document

    app.openapi = openapi  # type: ignore[method-assign]


def _describe_operation(operation: dict[str, Any]) -> None:
    permission = PERMISSIONS.get(operation.get("operationId", ""))
    if permission is None or not permission.is_open:
        operation["security"] = [{_SCHEME: []}]
