"""Which tests follow one another in one process when several run at a time.

The mark `xdist_group` would say it; with pytest 9.2, pytest-xdist 3.8 reads it and does not act on it (its issue 1386).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

ROOT = Path(__file__).parents[1]
#: What there is only one of: the folder of the files that may take it, and how a test takes it.
SHARED = {
    "the network": ("tests/", re.compile(r"\blan: Lan\b")),
    "the service of tests/e2e": ("tests/e2e/", re.compile(r"\bservice: Embedded\b")),
}
#: The tests of this folder have one Ray cluster in a process, from the first of them to the last one in a row.
LAB = "tests/integration/trainers/"
#: What takes longest begins first, in this order, so that no process is left alone with it at the end.
LONGEST = (
    "the service of tests/e2e",
    "the network",
    "tests/browser/test_page_views.py",
    "tests/e2e/test_ray_tls.py",
    "tests/e2e/test_demo.py",
    "tests/frameworks/test_transformers_loop.py",
)
#: Their tests read the whole repository, once for a process.
READ_EVERYTHING = "tests/architecture/"
#: Tests of a file here hold their trainings against the same undisturbed one, which each process has to do itself.
COMPARED = "tests/golden/"


def group_of(node_id: str, root: Path = ROOT) -> str:
    """All slow tests of a file are one group, and all that share something; most other tests are their own."""
    file = node_id.partition("::")[0]
    if file.startswith(READ_EVERYTHING):
        return READ_EVERYTHING
    if file.startswith(COMPARED):
        return file
    return _group_of_file(file, root) or node_id


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
    """Gives each process one group after the other: to one of them those of the lab, and the longest ones first."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self._labs: frozenset[str] | None = None
        self._at_lab: WorkerController | None = None

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Forget groups that are done: the scheduler walks over all it knows at each test that ends."""
        super().mark_test_complete(node, item_index, duration)
        groups = self.assigned_work[node]
        group = self._split_scope(self.registered_collections[node][item_index])
        if all(groups[group].values()):
            del groups[group]

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._labs is None:
            self._labs = frozenset(group for group in self.workqueue if group.startswith(LAB))
        if self._at_lab is None and self._labs:
            self._at_lab = node
        first = next_group(self.workqueue, self._labs, is_at_lab=node is self._at_lab)
        self.workqueue.move_to_end(first, last=False)
        super()._assign_work_unit(node)


def next_group(waiting: Mapping[str, object], labs: frozenset[str], *, is_at_lab: bool) -> str:
    """Which of the groups that wait a process takes; one that is not at the lab takes those of it last."""
    of_lab = sorted(group for group in labs if group in waiting)
    if is_at_lab and of_lab:
        return of_lab[0]
    longest = (group for group in LONGEST if group in waiting)
    others = (group for group in waiting if group not in labs)
    return next(itertools.chain(longest, others, of_lab))
