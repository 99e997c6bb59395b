"""The head dies with the driver on it: the job goes on from the newest checkpoint in the storage, known or not."""

from __future__ import annotations

import contextlib
import signal
import time
from pathlib import Path

import psutil
import pytest

from cluster.local.folders import ClusterFolders
from remora import Client
from remora.states import EndReason, JobState
from tests.e2e.embedded import CONTROLLER, Embedded
from tests.e2e.processes import PATIENCE_S, is_alive, processes_with, until
from tests.e2e.scripts import Steps
from trainers.checkpoints.catalog import Catalog
from trainers.storage import Storage

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(900)]


def kill_head(home: Path) -> None:
    """SIGKILL all processes of the head's machine at once: Ray's own, and drivers."""
    folders = ClusterFolders(home.resolve())
    victims = processes_with(folders.mark_of(folders.head_id))
    assert any(one.name().startswith("ray::Driver") for one in victims), "the driver dies with it"
    for one in victims:
        # Some end with the ones before them.
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(signal.SIGKILL)
    until(lambda: not any(is_alive(one) for one in victims), "the head is dead", 30.0)


def test_a_job_goes_on_from_a_checkpoint_that_the_service_never_heard_of(
    service: Embedded, client: Client, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Steps(tmp_path, steps=120)
    job = client.submit(script.spec)
    script.allow(40)
    known = until(lambda: client.job(job.id).checkpoint_step, "a checkpoint is committed, and known")
    script.until_done(40)

    catalog = Catalog(Storage(service.home / "storage"), job.id)
    controller = until(lambda: service.part(CONTROLLER), "the controller runs")
    controller.send_signal(signal.SIGSTOP)
    until(lambda: controller.status() == psutil.STATUS_STOPPED, "no controller asks the driver any more")
    known = max(known, client.job(job.id).checkpoint_step or 0)
    script.allow(80)
    script.until_done(80)
    until(lambda: (catalog.listed()[0].step) > max(known, 40), "a checkpoint that no controller knows of")

    began = time.monotonic()
    kill_head(service.home)
    saved = catalog.listed()[0].step
    first = len(script.done(0))
    until(lambda: client.job(job.id).attempt == 2, "nothing of the first attempt runs any more")
    # The checkpoint may be that of step 80: then no step is done again.
    script.allow(81)
    until(lambda: len(script.done(0)) > first, "it trains again")
    pause_s = time.monotonic() - began
    assert saved in {one.step for one in client.checkpoints(job.id)}, "its owner can download it"
    script.allow_all()

    ended = client.wait(job.id, PATIENCE_S * 2)
    assert (ended.state, ended.attempt) == (JobState.SUCCEEDED, 2), ended.message
    lost, resumed = client.attempts(job.id)
    assert (lost.end_reason, resumed.end_reason) == (EndReason.HEAD_LOST, EndReason.COMPLETED)
    assert resumed.resumed_from_step == saved
    for rank in (0, 1):
        done = script.done(rank)
        assert [step for step in range(1, 121) if done.count(step) > 1] == list(range(saved + 1, 81))
        assert sorted(set(done)) == list(range(1, 121))
    reported = [one.data["step"] for one in client.events(job.id) if one.kind == "checkpoint.committed"]
    assert reported.count(saved) == 1
    with capsys.disabled():
        print(
            f"\nhead lost: {80 - saved} steps again, {pause_s:.1f} s to the first step, {ended.lost_s:.1f} s lost"
        )
