"""Modules that Ray's worker processes import before they get work; a module of its own, so that it imports nothing."""

from __future__ import annotations

#: Environment variable of a raylet, which it inherits from the process that starts it.
PRELOAD_VARIABLE = "RAY_preload_python_modules"
PRELOADED = "ray.train.v2._internal.execution.worker_group.worker,trainers.supervisor.worker_process"
#: What one process of each node imports for all of them, where they are forked from it.
FORKED = f"{PRELOADED},trainers.driver.driver"
