"""JAX on real nodes, in an environment of its own that has JAX and `remora`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.trainers.jax_environment import jax_python
from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

EXAMPLE = (Path(__file__).parents[3] / "examples" / "jax" / "train.py").read_text()
#: Nothing of Remora is in it, and nothing that says how many processes there are.
UNMODIFIED = """
import jax
from jax.experimental import multihost_utils

jax.distributed.initialize()
ranks = multihost_utils.process_allgather(jax.numpy.array([jax.process_index() + 1]))
devices = f"{jax.local_device_count()} of {jax.device_count()} devices"
print(f"process {jax.process_index()} of {jax.process_count()}: {ranks.sum()}, {devices}", flush=True)
"""


@pytest.mark.backend("jax", "runs")
@pytest.mark.backend("jax", "silent death")
@pytest.mark.backend("jax", "resumes other size")
@pytest.mark.framework("JAX", "runs")
@pytest.mark.framework("JAX", "resumes")
@pytest.mark.framework("JAX", "metrics")
def test_a_job_loses_the_node_of_its_coordinator_and_goes_on_with_fewer_workers(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run(
        {"train.py": EXAMPLE}, jax_python(), "train.py", "--steps", "1500",
        backend="jax", min_workers=1, max_workers=2, checkpoint_interval_s=1.0,
    )  # fmt: skip
    run.until(lambda: run.checkpoints, "a checkpoint is committed")
    lab.provider.kill(run.node_of(0))
    assert run.end()["end_reason"] == "completed", run.text()
    begun = [line for line in run.text("stdout").splitlines() if "begins after step" in line]
    assert sorted(begun[:2]) == [f"worker {rank} of 2 begins after step 0" for rank in (0, 1)]
    assert begun[2].startswith("worker 0 of 1 begins after step ")
    assert int(begun[2].rsplit(" ", 1)[1]) > 0
    assert "1500 steps, loss 0.0" in run.text("stdout")
    losses = {body["step"]: body["values"]["loss"] for body in run.bodies("metric")}
    assert set(losses) == set(range(1, 1501))
    assert losses[1500] < 0.01 < losses[1]


@pytest.mark.backend("jax", "unmodified script")
def test_a_script_that_calls_initialize_without_arguments_finds_all_processes(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": UNMODIFIED}, jax_python(), "train.py", backend="jax")
    assert run.end()["end_reason"] == "completed", run.text()
    said = sorted(line for line in run.text("stdout").splitlines() if line.startswith("process"))
    assert said == [f"process {rank} of 2: 3, 1 of 2 devices" for rank in (0, 1)]
