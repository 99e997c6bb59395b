"""Worker processes wait on free nodes, and the next worker group gets them."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.integration.trainers.lab import Lab, until
from tests.integration.trainers.scripts import ENDLESS
from trainers.ready_processes import ReadyProcesses

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


def waiting_on(node_id: str) -> set[int]:
    """Processes of a node that Ray calls idle."""
    mark = f"REMORA_NODE_ID={node_id}".encode()
    found = set()
    for process in psutil.process_iter(["cmdline"]):
        try:
            if mark in Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0"):
                found.add((process.pid, " ".join(process.info["cmdline"] or [])))
        except OSError:
            continue
    return {pid for pid, command in found if command.startswith("ray::IDLE")}


def test_a_worker_group_gets_the_process_that_waits_and_the_free_node_another(lab: Lab) -> None:
    (node,) = lab.nodes(1)
    ready = ReadyProcesses()
    before = waiting_on(node)
    ready.look(is_quiet=True)
    waiting = until(lambda: waiting_on(node) - before, "a process waits")
    run = lab.run({"train.py": ENDLESS}, "python", "train.py", min_workers=1, max_workers=1)
    until(lambda: run.shims(), "the command runs")
    assert run.supervisor(0).pid in waiting | before
    ready.look(is_quiet=True)
    run.close()
    until(lambda: lab.nodes(1) == [node], "the node is free")
    left = waiting_on(node)
    ready.look(is_quiet=True)
    until(lambda: waiting_on(node) - left, "another one waits")
