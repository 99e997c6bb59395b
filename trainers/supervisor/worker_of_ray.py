"""Whether this process is a worker of Ray."""

from __future__ import annotations

import sys
from types import ModuleType


def worker_of_ray() -> ModuleType | None:
    """Ray, in a worker of it; None in a process that Ray has not started, as with `remora dev`.

    Importing it to ask would take a second.
    """
    return sys.modules.get("ray")
