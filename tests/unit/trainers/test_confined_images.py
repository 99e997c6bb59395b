"""A command of a worker in a container of an image, as a user of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from remora.machine_isolation import offered
from tests.container_images import image
from tests.unit.trainers.supervisor_stage import Driver, Stage, without_ray

pytestmark = pytest.mark.skipif(offered().uids is None, reason=offered().why_not)

CODE = """
import os, pathlib
import remora.training as training
for folder in (".", os.environ["REMORA_OUTPUTS_DIR"], "/tmp", "/dev/shm", os.environ["HOME"]):
    pathlib.Path(folder, "own").write_text("x")
with training.checkpoint(1) as folder:
    (folder / "part").write_text("saved")
print(os.getuid() > 1000, open("/proc/self/status").read().split("CapEff:")[1].split()[0])
"""


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    driver = Driver()
    without_ray(driver, tmp_path, monkeypatch)
    running = Stage(driver, tmp_path)
    yield running
    # The lock of the image stays.
    shutil.rmtree(tmp_path / "work" / "images")
    running.close()


def test_it_writes_to_its_own_folders_and_has_no_rights(stage: Stage) -> None:
    stage.start(CODE, command=["python", "train.py"], variables={}, image=image(), isolation="users")
    stage.driver.wait_for("prepared")
    assert stage.supervisor is not None
    stage.supervisor.instruct({"type": "begin"})
    assert stage.end() == {"type": "exit", "stopped": False, "exit_code": 0}, stage.driver.messages
    assert [one["text"] for one in stage.driver.all("log")] == ["True 0000000000000000"]
    assert len(stage.driver.all("shard")) == 1
