"""MPI, TensorFlow and JAX jobs leave a node that is taken, and go on in a later attempt with as many workers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from cluster.ray.drain import drain
from cluster.ray.membership import RayMembership
from remora.states import EndReason
from tests.integration.trainers.jax_environment import jax_python
from tests.integration.trainers.lab import Lab, Running
from tests.integration.trainers.tensorflow_environment import tensorflow_python

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

EXAMPLES = Path(__file__).parents[3] / "examples"
STEPS = 2000

#: A script of TensorFlow's manual with a loop of its own, which has never heard of Remora.
UNMODIFIED = """
import json, os
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
with strategy.scope():
    weight = tf.Variable(0.0)

@tf.function
def train():
    def own():
        weight.assign_add(tf.distribute.get_replica_context().all_reduce("SUM", 1.0))
    strategy.run(own)

for _ in range(5):
    train()
print(f"worker {index} of {strategy.num_replicas_in_sync} has {weight.numpy():.0f}", flush=True)
"""


def command_of(framework: str) -> str:
    """The interpreter that has the framework."""
    pythons = {"tensorflow": tensorflow_python, "jax": jax_python}
    return pythons[framework]() if framework in pythons else "python"


def start(lab: Lab, framework: str, **fields: Any) -> Running:
    """The framework's example, long enough for whatever happens to it."""
    files = {"train.py": (EXAMPLES / framework / "train.py").read_text()}
    wanted = {"min_workers": 1, "max_workers": 2, "checkpoint_interval_s": 1.0}
    return lab.run(
        files, command_of(framework), "train.py", "--steps", str(STEPS),
        backend=framework, variables={"CUDA_VISIBLE_DEVICES": "-1"}, **{**wanted, **fields},
    )  # fmt: skip


@pytest.mark.parametrize(
    "framework",
    [
        pytest.param("mpi", marks=pytest.mark.backend("mpi", "notice")),
        pytest.param("tensorflow", marks=[pytest.mark.soak, pytest.mark.backend("tensorflow", "notice")]),
        pytest.param("jax", marks=[pytest.mark.soak, pytest.mark.backend("jax", "notice")]),
    ],
)
def test_a_node_that_is_taken_is_left_at_a_checkpoint_and_no_step_is_repeated(
    lab: Lab, framework: str
) -> None:
    lab.nodes(2)
    run = start(lab, framework)
    run.until(lambda: run.step >= 20, "it trains")
    leaving = run.node_of(1)
    drain(RayMembership().observe()[leaving].ray_node_id, "the cloud takes it", time.time() + 30.0)
    run.until(lambda: run.world_sizes == [2, 1], "it goes on without the node")
    lab.provider.kill(leaving)
    assert run.end()["end_reason"] == "completed", run.text()
    assert run.progress["repeated_steps"] == 0
    assert run.step == STEPS


@pytest.mark.parametrize(
    "framework",
    [
        pytest.param("mpi", marks=[pytest.mark.soak, pytest.mark.backend("mpi", "resumes same size")]),
        pytest.param(
            "tensorflow", marks=[pytest.mark.soak, pytest.mark.backend("tensorflow", "resumes same size")]
        ),
        pytest.param("jax", marks=[pytest.mark.soak, pytest.mark.backend("jax", "resumes same size")]),
    ],
)
def test_a_later_attempt_goes_on_from_the_checkpoint_with_as_many_workers(lab: Lab, framework: str) -> None:
    lab.nodes(2)
    first = start(lab, framework, min_workers=2)
    first.until(lambda: first.checkpoints, "a checkpoint is committed")
    lab.stop(first, EndReason.CANCELLED)
    assert first.end()["end_reason"] == "cancelled"
    first.close()
    second = start(
        lab, framework, min_workers=2, bundle=first.plan.bundle, job_id=first.plan.job_id, attempt=2
    )
    assert second.end()["end_reason"] == "completed", second.text()
    assert second.progress["resumed_from_step"] == first.checkpoints[-1]
    assert second.world_sizes == [2]


@pytest.mark.backend("tensorflow", "unmodified script")
def test_a_script_of_tensorflow_that_knows_nothing_of_remora_trains_on_two_workers(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run(
        {"train.py": UNMODIFIED}, tensorflow_python(), "train.py",
        backend="tensorflow", variables={"CUDA_VISIBLE_DEVICES": "-1"},
    )  # fmt: skip
    assert run.end()["end_reason"] == "completed", run.text()
    said = sorted(line for line in run.text("stdout").splitlines() if line.startswith("worker"))
    assert said == ["worker 0 of 2 has 10", "worker 1 of 2 has 10"]
