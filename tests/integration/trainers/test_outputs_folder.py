"""What a script leaves in its outputs folder outlives its worker group and its attempt, on real nodes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Knows nothing of Remora: goes on from its own snapshot, or writes one and waits for its machine to go.
OWN_SNAPSHOT = """
import os, sys, threading
folder, rank = sys.argv[1], os.environ["RANK"]
seen = sorted(os.listdir(folder))
print("rank", rank, "finds", *seen, flush=True)
if "snapshot-0" in seen:
    open(os.path.join(folder, "final"), "w").write(rank)
    open(os.path.join(folder, "log-" + rank), "w").write("done")
    sys.exit(int(sys.argv[2]))
path = os.path.join(folder, "snapshot-" + rank)
open(path, "w").write("state")
os.utime(path, (1e9, 1e9))
print("rank", rank, "waits", flush=True)
threading.Event().wait()
"""


def test_a_scripts_own_snapshot_survives_the_loss_of_a_node_and_of_the_attempt(lab: Lab) -> None:
    lab.nodes(2)
    command = ("python", "train.py", "${{outputs.model}}", "3")
    first = lab.run({"train.py": OWN_SNAPSHOT}, *command, outputs=("model",), min_workers=1)
    first.until(lambda: first.text().count("waits") == 2, "both ranks wait")
    assert "rank 0 finds\n" in first.text() + "\n", "the folder of an output is there from the start"
    lab.provider.delete(first.node_of(1))
    assert first.end()["exit_code"] == 3
    assert first.world_sizes == [2, 1]
    assert "rank 0 finds snapshot-0" in first.text()
    assert set(first.bodies("output")[-1]["files"]) >= {"model/snapshot-0", "model/final", "model/log-0"}
    first.close()

    lab.nodes(2)
    plan = first.plan
    second = lab.run(
        {}, *plan.command[:-1], "0", bundle=plan.bundle, job_id=plan.job_id, attempt=2, outputs=("model",)
    )
    assert second.end()["end_reason"] == "completed"
    newest = second.bodies("output")[-1]
    assert {"model/snapshot-0", "model/final", "model/log-0", "model/log-1"} <= set(newest["files"])
    final = Path(newest["location"], newest["files"]["model/final"]["stored"])
    assert final.read_text() == "0", "of two ranks that write the same name the lowest one counts"
    second.close()
