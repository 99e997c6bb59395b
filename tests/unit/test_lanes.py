"""Tests that run several at a time: those that share a cluster, a service or the network follow one another."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lanes import LONGEST, ROOT, group_of, next_group
from tests.slow_files import slow_files

SERVICE, NETWORK = "the service of tests/e2e", "the network"


@pytest.mark.parametrize(
    ("file", "group"),
    [
        ("tests/e2e/test_losses.py", SERVICE),
        ("tests/e2e/test_commands.py", SERVICE),
        ("tests/e2e/test_emulated_azure.py", "tests/e2e/test_emulated_azure.py"),
        ("tests/chaos/test_soak.py", "tests/chaos/test_soak.py"),
        ("tests/chaos/test_chaos.py", NETWORK),
        ("tests/integration/network/test_network_cut.py", NETWORK),
        ("tests/integration/cluster/test_zone_cut_off.py", NETWORK),
        ("tests/integration/trainers/test_attempts.py", "tests/integration/trainers/test_attempts.py"),
        ("tests/architecture/test_house.py", "tests/architecture/"),
        ("tests/golden/test_sharded.py", "tests/golden/test_sharded.py"),
        ("tests/unit/test_needed.py", "tests/unit/test_needed.py::test_it[a::b]"),
    ],
)
def test_a_file_belongs_to_what_it_shares(file: str, group: str) -> None:
    assert group_of(f"{file}::test_it[a::b]") == group


A_LAB, NEXT_LAB = "tests/integration/trainers/test_attempts.py", "tests/integration/trainers/test_elastic.py"
LABS = frozenset({NEXT_LAB, A_LAB})


@pytest.mark.parametrize(
    ("waiting", "is_at_lab", "taken"),
    [
        (("a", A_LAB, NEXT_LAB, LONGEST[1]), True, A_LAB),
        (("a", NEXT_LAB, LONGEST[1]), True, NEXT_LAB),
        (("a", "b", LONGEST[1]), True, LONGEST[1]),
        ((A_LAB, "a", LONGEST[1], LONGEST[0]), False, LONGEST[0]),
        ((A_LAB, "a", "b"), False, "a"),
        ((NEXT_LAB, A_LAB), False, A_LAB),
    ],
)
def test_one_process_keeps_the_lab_and_what_takes_longest_begins_first(
    waiting: tuple[str, ...], is_at_lab: bool, taken: str
) -> None:
    assert next_group(dict.fromkeys(waiting), LABS, is_at_lab=is_at_lab) == taken


def test_what_takes_longest_is_of_the_slow_lane() -> None:
    assert set(LONGEST) <= {group_of(f"{file}::test_it") for file in slow_files()}


def test_a_run_in_several_processes_follows_the_groups(tmp_path: Path) -> None:
    """Each process says which tests it ran: those of one file are all in one."""
    for name, mark in (("slow", "@pytest.mark.slow\n"), ("fast", "")):
        (tmp_path / f"test_{name}.py").write_text(
            f"import pytest\n{mark}@pytest.mark.parametrize('number', range(8))\ndef test_it(number): pass\n"
        )
    (tmp_path / "conftest.py").write_text(
        "from tests import lanes\n"
        "from tests.conftest import pytest_configure, pytest_xdist_make_scheduler\n"
        "group_of = lanes.group_of\n"
        f"lanes.group_of = lambda node_id: group_of(node_id, lanes.Path({str(tmp_path)!r}))\n"
    )
    words = ["-v", "-n", "2", "--dist", "loadscope", "--no-loadscope-reorder"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words, "-c", ROOT / "pyproject.toml", "--rootdir", tmp_path, tmp_path],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    ran = re.findall(r"\[(gw\d)\] .* PASSED \S*test_(slow|fast)\.py::", done.stdout)
    assert len(ran) == 16
    assert len({process for process, name in ran if name == "slow"}) == 1
    assert len({process for process, name in ran if name == "fast"}) == 2
