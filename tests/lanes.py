"""Which tests follow one another in one process when several run at a time.

The mark `xdist_group` would say it; with pytest 9.2, pytest-xdist 3.8 reads it and does not act on it (its issue 1386).
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).parents[1]
#: What there is only one of: the folder of the files that may take it, and how a test takes it.
SHARED = {
    "the network": ("tests/", re.compile(r"\blan: Lan\b")),
    "the service of tests/e2e": ("tests/e2e/", re.compile(r"\bservice: Embedded\b")),
}


#: Their tests read the whole repository, once for a process.
READ_EVERYTHING = "tests/architecture/"


def group_of(node_id: str, root: Path = ROOT) -> str:
    """All slow tests of a file are one group, and all that share something; any other test is its own."""
    if node_id.startswith(READ_EVERYTHING):
        return READ_EVERYTHING
    return _group_of_file(node_id.partition("::")[0], root) or node_id


@cache
def _group_of_file(name: str, root: Path) -> str | None:
    text = (root / name).read_text()
    if "mark.slow" not in text:
        return None
    for shared, (folder, how) in SHARED.items():
        if name.startswith(folder) and how.search(text):
            return shared
    return name


class Lanes(LoadScopeScheduling):
    """Gives each process one group after the other."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget groups that are done: the scheduler walks over all it knows at each test that ends."""
        super().mark_test_complete(node, item_index, duration)
        groups = self.assigned_work[node]
        group = self._split_scope(self.registered_collections[node][item_index])
        if all(groups[group].values()):
            del groups[group]
