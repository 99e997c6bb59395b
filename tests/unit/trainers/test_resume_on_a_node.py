"""A worker group that follows on the same node reads what the last one handed over, in whatever way a script saves."""

from __future__ import annotations

import pytest

from tests.unit.trainers.supervisor_stage import Stage
from trainers.checkpoints.catalog import Catalog
from trainers.checkpoints.manifest import Manifest

#: Trains as a plain loop does that owns its training: it saves, and fails; the next time it reads that.
SCRIPT = """
from remora import training

saved = training.resume_from()
if saved is None:
    with training.checkpoint(7, size_bytes={size_bytes}) as folder:
        (folder / "state").write_text("of step 7")
    raise SystemExit(1)
print("state", (saved / "state").read_text(), flush=True)
"""


@pytest.mark.parametrize("isolation", ["none", "auto"])
@pytest.mark.parametrize("size_bytes", [None, 9])
def test_a_script_resumes_from_what_its_node_still_has(
    stage: Stage, size_bytes: int | None, isolation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.supervisor.kept_checkpoints._FREE_MEMORY", 0.0)
    monkeypatch.setattr("trainers.supervisor.kept_checkpoints._FREE_DISK", 0.0)
    script = SCRIPT.format(size_bytes=size_bytes)
    stage.start(script, isolation=isolation)
    assert stage.end()["exit_code"] == 1
    (shard,) = stage.driver.all("shard")
    manifest = Manifest(
        job_id="job_1", step=7, attempt=1, generation=1, world_size=1, committed_at=0.0, files=shard["files"]
    )
    Catalog(stage.storage, "job_1").commit(manifest)
    stage.storage.delete(f"jobs/job_1/checkpoints/{manifest.folder}/state")
    stage.driver.messages.clear()

    stage.start(script, isolation=isolation, resume=manifest)

    assert stage.end()["exit_code"] == 0
    lines = [one["text"] for one in stage.driver.all("log")]
    assert "state of step 7" in lines
    assert "9 B of the checkpoint were still on this node" in lines
    assert list((stage.folder / "work").iterdir()) == [], "a script that ended well needs nothing more"
    assert list(stage.memory.iterdir()) == []
