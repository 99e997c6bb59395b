"""A model that FSDP shards over three nodes loses one of them, and goes on from the memory of the other two."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.integration.trainers.lab import Lab

# test_fsdp_on_nodes.py loses a node of three, too; tests/golden/test_sharded.py compares weights, without nodes.
pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

EXAMPLE = Path(__file__).parents[3] / "examples" / "fsdp" / "train.py"
STEPS, HELD = 30, 10

#: Put into the example: it stands still at one step until it may go on, and keeps its weights at the end.
HOLD = f"""
        folder = pathlib.Path(os.environ["OUT"])
        while step.number == {HELD} and not (folder / "go-on").exists():
            time.sleep(0.01)
"""
KEEP = """
    weights = {name: one.full_tensor() for name, one in loop.model.named_parameters()}
    if loop.world.rank == 0:
        torch.save(weights, folder / "weights.pt")
"""


def script() -> str:
    text = EXAMPLE.read_text()
    for place, more in (("        step.report(loss=loss)\n", HOLD), ("    if loop.world.rank == 0:\n", "")):
        assert text.count(place) == 1
        text = text.replace(place, place + more if more else KEEP.lstrip("\n") + place)
    return text.replace("import argparse\n", "import argparse, os, pathlib, time\n")


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = torch.load(folder / "weights.pt", weights_only=True)
    return weights


@pytest.fixture
def undisturbed(tmp_path: Path) -> dict[str, torch.Tensor]:
    """Weights of the script when it runs alone."""
    folder = tmp_path / "alone"
    folder.mkdir()
    (folder / "go-on").touch()
    (folder / "train.py").write_text(script())
    command = [sys.executable, "train.py", "--steps", str(STEPS)]
    variables = {**os.environ, "OUT": str(folder), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, cwd=folder, env=variables, check=True)
    return weights_of(folder)


def test_a_killed_node_of_three_costs_no_state(
    lab: Lab, tmp_path: Path, undisturbed: dict[str, torch.Tensor]
) -> None:
    lab.nodes(3)
    run = lab.run(
        {"train.py": script()}, "python", "train.py", "--steps", str(STEPS),
        backend="fsdp", min_workers=1, max_workers=3, variables={"OUT": str(tmp_path)},
    )  # fmt: skip
    run.until(lambda: run.step == HELD, "it trains on all nodes")
    assert run.bodies("metric")[-1]["world_size"] == 3
    lab.provider.kill(run.node_of(1))
    (tmp_path / "go-on").touch()
    assert run.end()["end_reason"] == "completed"

    regrouped = [one["data"] for one in run.events("worker_group.regrouped")]
    assert [(one["cause"], one["world_size"]) for one in regrouped] == [("loss", 2)]
    assert len(run.events("worker_group.started")) == 1, "the others keep their processes"
    assert run.checkpoints in ([], [STEPS]), "there was none to go back to"
    assert run.progress["repeated_steps"] <= 2, "the newest snapshot is at most one step old"
    weights = weights_of(tmp_path)
    assert weights.keys() == undisturbed.keys()
    for name, value in weights.items():
        torch.testing.assert_close(value, undisturbed[name], rtol=1e-5, atol=1e-5, msg=f"{name} differs")
