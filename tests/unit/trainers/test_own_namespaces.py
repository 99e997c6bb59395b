"""A node without any rights, as a user that is not root: its commands find nothing of it, and work."""

from __future__ import annotations

import json
import os

import pytest

from remora.machine_isolation import offered
from tests.rootless import as_other_user, home_of_another

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user"),
    pytest.mark.skipif(
        not offered("namespaces").has_namespaces, reason=offered("namespaces").why_no_namespaces
    ),
]


@pytest.mark.parametrize(("is_root", "asked"), [(False, "auto"), (False, "namespaces"), (True, "namespaces")])
def test_a_hostile_command_finds_nothing_of_its_node_and_may_write_to_its_own_places(
    is_root: bool, asked: str
) -> None:
    with home_of_another() as home:
        if is_root:
            os.chown(home, 0, 0)
        done = as_other_user(home, "-m", "tests.unit.trainers.rootless_stage", str(home), asked)
    lines = [line for line in done.stdout.splitlines() if line.startswith("REPORT ")]
    assert lines, done.stderr[-4000:]
    for way, seen in json.loads(lines[0].removeprefix("REPORT ")).items():
        assert seen == {
            "status": {"exit_code": 0},
            "lines": ["UNCOVERED []", "FOUND []", "SHARED ['own', 'own', 'own', 'own']"],
            # Where there are no cgroups, too.
            "left": {"exit_code": 0, "outlived": 1},
            "is_alone": True,
        }, way
