"""What a forked command has open when it becomes the job's user: from then on other processes of that user may look."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

import pytest

from remora.machine_isolation import offered
from tests.unit.trainers.test_child import ChildHarness
from trainers.isolation.confined import ConfinedJob, Confinement, confined_job
from trainers.isolation.mounts import MountStep
from trainers.processes.fork_server_client import ForkServer

#: Two outputs, the script's channel, and that on which the command says why it did not start.
NEEDED = 4


class ProbingHarness(ChildHarness):
    """Starts commands that show a descriptor of their own first, which fails for another reason where it is open."""

    probed = 0

    def _confinement(self, job: ConfinedJob) -> Confinement:
        usual = super()._confinement(job)
        step = MountStep(source=Path(f"/proc/self/fd/{self.probed}"), target=self.folder / "target")
        return dataclasses.replace(usual, steps=(step, *usual.steps))


def test_a_forked_command_has_its_streams_alone_before_it_is_the_jobs_user(tmp_path: Path) -> None:
    if offered().uids is None:
        pytest.skip(offered().why_not)
    folder, temporary = tmp_path / "folder", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    warm = ForkServer(tmp_path / "fork-server", os.getpid(), [])
    found = []
    with confined_job("users", tmp_path.name, tmp_path, temporary) as job:
        harness = ProbingHarness(folder, warm, job=job)
        for harness.probed in range(3, 24):
            why = str(harness.start(sys.executable, "-c", "pass").wait()["start_failed"])
            if f"{harness.probed} cannot be shown to the command: No such file" not in why:
                found.append(harness.probed)
        harness.close()
    assert len(found) == NEEDED
