"""What Ray's worker processes import before they have anything to do; apart, so that naming it imports nothing."""

from __future__ import annotations

#: Environment variable of a raylet, which it also has when whoever starts it has it.
PRELOAD_VARIABLE = "RAY_preload_python_modules"
PRELOADED = "ray.train.v2._internal.execution.worker_group.worker,trainers.supervisor.supervisor"
#: What one process of each node imports for all of them, where they are forked from it.
FORKED = f"{PRELOADED},trainers.driver.driver"
