"""Remora: elastic training on Ray.

Names are loaded when they are first used: a training script that imports `remora.training` in an environment of
its own needs nothing but the standard library.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from remora.client.asynchronous import AsyncClient
    from remora.client.blocking import Client
    from remora.errors import (
        ApiError,
        BundleError,
        ConfigurationError,
        Conflict,
        ConnectionFailed,
        DownloadError,
        Forbidden,
        Invalid,
        NotFound,
        RemoraError,
        SpecError,
        TooLarge,
        Unauthenticated,
        Unavailable,
        WaitTimeout,
    )
    from remora.spec.spec import JobSpec
    from remora.states import AttemptState, EndReason, JobState, NodeState

_MODULE_OF = {
    "AsyncClient": "remora.client.asynchronous",
    "Client": "remora.client.blocking",
    "JobSpec": "remora.spec.spec",
    **dict.fromkeys(("AttemptState", "EndReason", "JobState", "NodeState"), "remora.states"),
    **dict.fromkeys(
        (
            "ApiError",
            "BundleError",
            "ConfigurationError",
            "Conflict",
            "ConnectionFailed",
            "DownloadError",
            "Forbidden",
            "Invalid",
            "NotFound",
            "RemoraError",
            "SpecError",
            "TooLarge",
            "Unauthenticated",
            "Unavailable",
            "WaitTimeout",
        ),
        "remora.errors",
    ),
}

__all__ = [
    "ApiError",
    "AsyncClient",
    "AttemptState",
    "BundleError",
    "Client",
    "ConfigurationError",
    "Conflict",
    "ConnectionFailed",
    "DownloadError",
    "EndReason",
    "Forbidden",
    "Invalid",
    "JobSpec",
    "JobState",
    "NodeState",
    "NotFound",
    "RemoraError",
    "SpecError",
    "TooLarge",
    "Unauthenticated",
    "Unavailable",
    "WaitTimeout",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Load a public name's module when the name is first used."""
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module 'remora' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return sorted(__all__)
