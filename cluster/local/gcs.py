"""How much of a core the process takes that keeps the state of a local Ray cluster."""

from __future__ import annotations

import time
from pathlib import Path

from cluster.local.environment import MACHINE_VARIABLE
from cluster.local.folders import ClusterFolders
from cluster.processes import find_by_environment

#: The name of its process.
_NAME = "gcs_server"


class GcsUse:
    """Counts the processor time of the global control store of one home's cluster, and of no other on this host."""

    def __init__(self, home: Path) -> None:
        """Begin to count.  Raises LookupError when its head does not run."""
        folders = ClusterFolders(home.resolve())
        found = find_by_environment(MACHINE_VARIABLE, folders.mark_of(folders.head_id))
        named = [process for process in found if process.name() == _NAME]
        if not named:
            raise LookupError(f"no {_NAME} runs for the Ray cluster in {folders.home}; start its head first")
        self._process = named[0]
        self._began_at, self._began_s = time.monotonic(), self._used_s()

    def share(self) -> float:
        """Its share of one core since then, 0 to 1 and more.  Raises psutil.NoSuchProcess when it has ended."""
        return (self._used_s() - self._began_s) / max(time.monotonic() - self._began_at, 1e-9)

    def _used_s(self) -> float:
        times = self._process.cpu_times()
        return float(times.user + times.system)
