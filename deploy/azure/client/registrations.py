"""The kinds of resources that a subscription may have: only a person may register them, and the controller may not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from deploy.azure.client.resource_manager import VERSIONS, Refused, ResourceManager

#: Seconds for which a registration is waited for.
_PATIENCE_S = 900.0


def register(
    manager: ResourceManager,
    subscription: str,
    namespaces: Iterable[str],
    poll_s: float,
    say: Callable[[str], None],
) -> None:
    """Register a subscription, given by its path, for namespaces such as Microsoft.Compute, and wait for it.

    Raises Refused.
    """
    for namespace in namespaces:
        _register(manager, f"{subscription}/providers/{namespace}", poll_s, say)


def _register(manager: ResourceManager, path: str, poll_s: float, say: Callable[[str], None]) -> None:
    given_up_at = time.monotonic() + _PATIENCE_S
    is_asked = False
    while (state := _state(manager, path)) != "Registered":
        if not is_asked:
            manager.begin(f"{path}/register", VERSIONS["providers"])
            say(f"  registering {path}, which takes minutes")
            is_asked = True
        elif time.monotonic() > given_up_at:
            raise Refused(f"{path} is still {state} after a quarter of an hour; call it again")
        else:
            time.sleep(poll_s)


def _state(manager: ResourceManager, path: str) -> str:
    document = manager.get(path, VERSIONS["providers"]) or {}
    return str(document.get("registrationState", "unknown"))
