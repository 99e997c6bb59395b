"""Scripts for MPI on real nodes, with the distribution's Open MPI."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.states import EndReason
from tests.integration.trainers.lab import Lab, processes_of, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("mpirun"),
]

EXAMPLE = (Path(__file__).parents[3] / "examples" / "mpi" / "train.py").read_text()

#: Reduces over all ranks, and says what each one is.
ALL_REDUCE = """
import os
from mpi4py import MPI
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
assert str(world.rank) == os.environ["RANK"] and str(world.size) == os.environ["WORLD_SIZE"]
assert os.environ["OMPI_COMM_WORLD_LOCAL_RANK"] == os.environ["LOCAL_RANK"]
print(f"rank {world.rank} of {world.size} has {total}", flush=True)
"""

#: One rank ends all of them, as MPI's standard has it; the others wait in a collective.
ABORT = """
import sys
from mpi4py import MPI
world = MPI.COMM_WORLD
if world.rank == 1:
    print("the field is not divergence-free", file=sys.stderr, flush=True)
    world.Abort(5)
world.barrier()
"""

#: Never comes out of MPI.
ENDLESS = """
from mpi4py import MPI
world = MPI.COMM_WORLD
world.barrier()
print(f"rank {world.rank} goes on", flush=True)
while True:
    world.barrier()
"""


@pytest.mark.backend("mpi", "unmodified script")
def test_an_all_reduce_over_three_workers_on_two_nodes(lab: Lab) -> None:
    lab.nodes(2)
    half = {"min_workers": 3, "max_workers": 3, "resources": {"CPU": 0.5}}
    run = lab.run({"train.py": ALL_REDUCE}, "python", "train.py", backend="mpi", **half)
    assert run.end()["end_reason"] == "completed", run.text()
    said = sorted(body["text"] for body in run.bodies("log") if body["stream"] == "stdout")
    assert said == [f"rank {rank} of 3 has 6" for rank in range(3)]
    assert all(f"rank {body['rank']} of" in body["text"] for body in run.bodies("log"))
    assert len(set(run.events("worker_group.started")[0]["data"]["addresses"])) == 2
    until(lambda: lab.work_folders() == [], "nothing is left on the nodes", 10.0)


def test_an_abort_is_the_exit_code_of_its_rank(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": ABORT}, "python", "train.py", backend="mpi")
    end = run.end()
    assert (end["end_reason"], end["exit_code"]) == ("exit_code", 5), run.text()
    assert "rank 1" in end["message"]


def test_a_stop_ends_all_ranks_and_mpirun(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": ENDLESS}, "python", "train.py", backend="mpi")
    run.until(lambda: run.text("stdout").count("goes on") == 2, "both ranks run")
    commands = [" ".join(one.cmdline()) for one in processes_of(run.plan.attempt_id)]
    assert any(one.startswith("mpirun") for one in commands)
    assert any(one.startswith("orted") for one in commands)
    lab.stop(run, EndReason.CANCELLED)
    assert run.end()["end_reason"] == "cancelled"
    assert processes_of(run.plan.attempt_id) == []


@pytest.mark.framework("MPI", "resumes")
@pytest.mark.backend("mpi", "resumes other size")
@pytest.mark.backend("mpi", "silent death")
def test_pytorch_that_bootstraps_over_mpi_goes_on_with_fewer_workers_after_a_loss(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run(
        {"train.py": EXAMPLE}, "python", "train.py", "--steps", "2000",
        backend="mpi", min_workers=1, max_workers=2, checkpoint_interval_s=1.0,
    )  # fmt: skip
    run.until(lambda: len(run.checkpoints) >= 1, "a checkpoint is committed")
    lab.provider.kill(run.node_of(1))
    run.until(lambda: run.events("node.lost"), "the loss is seen")
    assert run.end()["end_reason"] == "completed", run.text()
    assert run.world_sizes == [2, 1]
    begun = [line for line in run.text("stdout").splitlines() if "begin after step" in line]
    assert begun[0] == "2 ranks begin after step 0"
    assert begun[1].startswith("1 ranks begin after step ")
    assert int(begun[1].rsplit(" ", 1)[1]) > 0
    assert "2000 steps, loss 0.00" in run.text("stdout")


def test_a_node_without_mpi_says_what_to_do(lab: Lab) -> None:
    lab.nodes(2)
    run = lab.run({"train.py": ""}, "python", "train.py", backend="mpi", variables={"PATH": "/nowhere"})
    end = run.end()
    assert end["end_reason"] == "start_failed"
    assert "in its PATH; install Open MPI 4 on the nodes" in end["message"]


def test_parameters_that_keep_mpirun_from_starting_are_named_and_not_tried_again(lab: Lab) -> None:
    lab.nodes(2)
    wrong = {"OMPI_MCA_oob_tcp_if_include": "eth99"}
    run = lab.run({"train.py": ALL_REDUCE}, "python", "train.py", backend="mpi", variables=wrong)
    end = run.end()
    assert end["end_reason"] == "start_failed", end
    assert "starts nothing with the job's OMPI_MCA_oob_tcp_if_include; correct that" in end["message"]
