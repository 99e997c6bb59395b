"""A job runs where the node's files are closed to others by a strict umask."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remora.machine_isolation import offered
from tests.unit.trainers.test_child import ChildHarness
from trainers.isolation.confined import ConfinedJob, Confinement, confined_job
from trainers.isolation.mounts import Shown
from trainers.node_folders import shared_folder


class GroupHarness(ChildHarness):
    """Starts commands in a folder of the job's user, in the folder of a group of workers."""

    def _confinement(self, job: ConfinedJob) -> Confinement:
        return job.on_node(self._shown(), None)

    def _shown(self) -> list[Shown]:
        group = self.folder.parent
        return [Shown(source=group, target=group, is_read_only=False)]


@pytest.fixture
def strict() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    assert os.umask(before) == 0o077, "the node has its own umask again"


@pytest.mark.usefixtures("strict")
def test_a_job_works_in_its_folders_and_reads_what_the_node_made_for_it(tmp_path: Path) -> None:
    if offered().uids is None:
        pytest.skip(offered().why_not)
    root = tmp_path / "work"
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    root.mkdir()
    with (
        shared_folder("att_1-1", root) as group,
        confined_job("users", tmp_path.name, group, temporary) as job,
    ):
        assert job is not None
        scratch, resume = group / "scratch", group / "resume"
        scratch.mkdir()
        job.own(scratch)
        resume.mkdir()
        (resume / "part").write_text("node")
        # As a fork server has it that was started before.
        os.umask(0o077)
        harness = GroupHarness(scratch, job=job)
        code = "import os; open('made', 'w').write(open('../resume/part').read()); os.mkdir('/tmp/own')"
        assert harness.start(sys.executable, "-c", code).wait() == {"exit_code": 0}, harness.heard.lines
        assert (scratch / "made").read_text() == "node"
        assert (scratch / "made").stat().st_mode & 0o777 == 0o600
        harness.close()
