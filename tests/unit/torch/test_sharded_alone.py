"""ShardedLoop in this very process, without any peer and without Remora."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.data import TensorDataset, WeightedRandomSampler

from remora.torch import Diverged, Loop, NotFinite
from remora.torch.layout import Writer
from remora.torch.randomness import derive, seed_everything
from remora.torch.sharded import ShardedLoop, checkpoint_io, checkpoint_parts, snapshots
from remora.torch.sharded.mesh import close_mesh
from remora.torch.sharded.process_groups import StateLost
from remora.torch.sharded.snapshot_choice import SnapshotId
from remora.torch.sharded.state_shards import ShardOffsets
from remora.torch.sharded.step_runner import all_finite, mark_nonfinite
from remora.torch.state import CheckpointUnusable, LoopState, Progress, write

DATA = TensorDataset(torch.arange(48.0).view(12, 4) / 48, torch.arange(12) % 3)
ARGUMENTS: dict[str, Any] = {"data": DATA, "global_batch": 4, "shards": 2, "total_steps": 5, "seed": 3}


@pytest.fixture(autouse=True)
def _without_a_group() -> Iterator[None]:
    yield
    close_mesh()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3))


def build(mesh: Any) -> Any:
    model = network()
    fully_shard(model[0], mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def compute(model: nn.Module, batch: Any) -> torch.Tensor:
    return functional.cross_entropy(model(batch[0]), batch[1])


def train(loop: ShardedLoop, compute: Any, damages_after: int | None = None) -> None:
    """Train; a bit of the newest snapshot is turned over in memory after that step."""
    for step in loop:
        if step.number - 1 == damages_after:
            loop._snapshots.wait()
            loop._snapshots._taken[-1].shards[0][3] ^= 1
        step.backward(compute)
        loop.optimizer.step()


def summed(model: nn.Module, batch: Any) -> Any:
    weights = batch[1] + 1.0
    each = functional.cross_entropy(model(batch[0]), batch[1], reduction="none")
    return (each * weights).sum(), weights.sum()


@pytest.mark.parametrize("more", [{}, {"sampler": WeightedRandomSampler([1.0, 2.0, 3.0] * 4, 12)}])
@pytest.mark.parametrize("compute", [compute, summed])
def test_alone_it_trains_what_loop_trains(compute: Any, more: dict[str, Any]) -> None:
    sharded = ShardedLoop(build, **ARGUMENTS, **more)
    losses = []
    for step in sharded:
        losses.append(step.backward(compute).item())
        sharded.optimizer.step()
    seed_everything(derive(3, "build"))
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    expected = []
    for step in Loop(model, optimizer, **ARGUMENTS, **more):
        expected.append(step.backward(compute).item())
        optimizer.step()
    assert losses == pytest.approx(expected, abs=1e-6)
    for one, other in zip(sharded.model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(one.full_tensor(), other)
    for one, other in zip(sharded.model.buffers(), model.buffers(), strict=True):
        torch.testing.assert_close(one, other)


def test_a_model_that_is_not_sharded_is_refused() -> None:
    def plain(_: object) -> Any:
        model = network()
        return model, torch.optim.AdamW(model.parameters())

    with pytest.raises(ValueError, match="call fully_shard"):
        next(iter(ShardedLoop(plain, **ARGUMENTS)))


def test_a_build_that_returns_the_model_alone_is_refused() -> None:
    with pytest.raises(TypeError, match=r"returns \(model, optimizer\)"):
        next(iter(ShardedLoop(lambda mesh: fully_shard(network(), mesh=mesh), **ARGUMENTS)))


def test_snapshots_never_are_refused() -> None:
    with pytest.raises(ValueError, match="snapshot_every is a number of steps"):
        ShardedLoop(build, snapshot_every=0, **ARGUMENTS)


def test_a_script_with_a_process_group_of_its_own_is_refused() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(ValueError, match="leave out init_process_group"):
            ShardedLoop(build, **ARGUMENTS)
    finally:
        dist.destroy_process_group()


def build_wider(mesh: Any) -> Any:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.Linear(8, 3))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def build_deeper(mesh: Any) -> Any:
    model = nn.Sequential(*network(), nn.Linear(3, 3))
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def build_with_sgd(mesh: Any) -> Any:
    model, _ = build(mesh)
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def write_now(loop: ShardedLoop, folder: Path) -> None:
    """As a rank writes it."""
    loop._progress = Progress(1, 0, 1)
    loop._take()
    own = loop._snapshots.own_copy(SnapshotId(1, loop._groups.generation))
    assert own is not None
    blocks = checkpoint_io.blocks_of(own.layout, own.offsets, own.memory(), loop._present.grid, 0)
    checkpoint_io.save(folder, blocks, Writer(), own.whole["state"])


def test_a_checkpoint_is_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = ShardedLoop(build, **ARGUMENTS)
    step = next(iter(loop))
    step.backward(compute)
    loop.optimizer.step()
    write_now(loop, tmp_path)
    saved = {name: one.full_tensor().clone() for name, one in loop._present.sharded.tensors()}
    assert len(saved) == 3 * 6, "parameters, and two moments of each"
    close_mesh()
    monkeypatch.setenv("REMORA_RESUME_DIR", str(tmp_path))
    resumed = ShardedLoop(build, **ARGUMENTS)
    assert next(iter(resumed)).number == 2
    found = {name: one.full_tensor() for name, one in resumed._present.sharded.tensors()}
    assert saved.keys() == found.keys()
    assert all(torch.equal(saved[name], found[name]) for name in saved)


@pytest.mark.parametrize(
    ("left", "said"),
    [(0, "holds no sharded state"), (1, "holds 1 files of a sharded state, and others are missing")],
)
def test_a_checkpoint_without_all_files_is_refused(
    left: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = ShardedLoop(build, **ARGUMENTS)
    next(iter(loop)).backward(compute)
    write_now(loop, tmp_path)
    (path,) = tmp_path.glob(checkpoint_io.FILES)
    if left:
        path.rename(tmp_path / "sharded-00001-of-00002.safetensors")
    else:
        path.unlink()
    close_mesh()
    monkeypatch.setenv("REMORA_RESUME_DIR", str(tmp_path))
    with pytest.raises(CheckpointUnusable, match=said):
        next(iter(ShardedLoop(build, **ARGUMENTS)))


@pytest.mark.parametrize("left", [0, 1])
def test_files_that_went_with_their_nodes_are_asked_for_again(left: int, tmp_path: Path) -> None:
    loop = ShardedLoop(build, **ARGUMENTS)
    next(iter(loop)).backward(compute)
    write_now(loop, tmp_path)
    (path,) = tmp_path.glob(checkpoint_io.FILES)
    if left:
        path.rename(tmp_path / "sharded-00001-of-00002.safetensors")
    else:
        path.unlink()
    present = loop._present
    with pytest.raises(StateLost, match="files of the checkpoint were on a node that is gone"):
        checkpoint_parts.load(tmp_path, present.sharded, present.grid, loop._groups.host_group)


def test_a_checkpoint_of_a_whole_model_is_not_asked_for_again(tmp_path: Path) -> None:
    model = network()
    whole = LoopState({"model": model}, {}).capture(Progress(1, 0, 1))
    write(whole, tmp_path)
    loop = ShardedLoop(build, **ARGUMENTS)
    next(iter(loop)).backward(compute)
    present = loop._present
    with pytest.raises(CheckpointUnusable, match="it was not written by ShardedLoop"):
        checkpoint_parts.load(tmp_path, present.sharded, present.grid, loop._groups.host_group)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (build_wider, "the saved model/0.weight does not fit the script's model"),
        (build_deeper, "the checkpoint holds no 4.weight: it is one of another model"),
        (build_with_sgd, "its optimizer has betas, and SGD has not"),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_in_one_sentence(
    other: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = ShardedLoop(build, **ARGUMENTS)
    step = next(iter(loop))
    step.backward(compute)
    loop.optimizer.step()
    write_now(loop, tmp_path)
    close_mesh()
    monkeypatch.setenv("REMORA_RESUME_DIR", str(tmp_path))
    resumed = ShardedLoop(build, **ARGUMENTS)
    assert next(iter(resumed)).number == 2
    close_mesh()
    with pytest.raises(CheckpointUnusable, match=said):
        next(iter(ShardedLoop(other, **ARGUMENTS)))


def test_a_number_of_workers_that_does_not_fit_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"1 workers cannot be arranged with tensor=2: write workers\.multiple_of: 2"
    ):
        next(iter(ShardedLoop(build, tensor=2, **ARGUMENTS)))


def test_a_snapshot_that_is_not_what_its_owner_holds_ends_the_attempt() -> None:
    loop = ShardedLoop(build, **ARGUMENTS)
    with pytest.raises(
        Diverged, match=r"After step 1 the state of rank 0 is not what its snapshot holds, first in 0"
    ):
        train(loop, compute, damages_after=1)


def test_snapshots_are_taken_where_they_are_compared() -> None:
    loop = ShardedLoop(build, check_every=2, snapshot_every=3, **ARGUMENTS)
    steps = []
    for step in loop:
        steps.append(loop._snapshots.newest_step)
        step.backward(compute)
        loop.optimizer.step()
    assert steps == [0, 1, 2, 3, 4]
    assert loop._agreed_after == 4


def test_a_type_that_no_file_of_a_checkpoint_holds_is_refused_before_training() -> None:
    def double(mesh: Any) -> Any:
        model = nn.Linear(4, 3, dtype=torch.complex128)
        fully_shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters())

    with pytest.raises(ValueError, match=r"weight is of the type torch\.complex128, which the files"):
        next(iter(ShardedLoop(double, **ARGUMENTS)))


def test_a_list_of_optimizers_is_refused() -> None:
    def several(mesh: Any) -> Any:
        model, optimizer = build(mesh)
        return model, [optimizer]

    with pytest.raises(TypeError, match="returns one optimizer behind the model"):
        next(iter(ShardedLoop(several, **ARGUMENTS)))


@pytest.mark.parametrize(
    ("nonfinite", "said"),
    [
        ("skip", "the loss of step 21 is not finite, like 20 before it"),
        ("rollback", "the loss of step 1 is not finite, after 10 batches were left out"),
    ],
)
def test_losses_that_are_never_finite_end_it(nonfinite: Any, said: str) -> None:
    loop = ShardedLoop(build, nonfinite=nonfinite, **{**ARGUMENTS, "total_steps": 50})
    with pytest.raises(NotFinite, match=said):
        train(loop, lambda model, batch: compute(model, batch) * torch.nan)


def test_infinite_gradients_of_all_layers_are_found_where_the_loss_is_finite() -> None:
    def steep(model: nn.Module, batch: Any) -> torch.Tensor:
        # The root of zero is zero, and steep.
        return compute(model, batch) + model(batch[0]).mul(0.0).abs().sum().sqrt()

    loop = ShardedLoop(build, nonfinite="stop", **ARGUMENTS)
    with pytest.raises(NotFinite, match="the gradient of step 1 is not finite"):
        next(iter(loop)).backward(steep)


def test_infinite_gradients_of_one_rank_are_found_by_all() -> None:
    model = network()
    compute(model, DATA[:4]).backward()
    assert all_finite(model.parameters())
    mark_nonfinite(model.parameters())
    assert not all_finite(model.parameters())


def test_a_large_snapshot_is_copied_beside_the_step_and_holds_the_state_before_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshots, "SMALL_BYTES", 0)
    loop = ShardedLoop(build, **ARGUMENTS)
    before: dict[str, torch.Tensor] = {}
    for step in loop:
        loop._snapshots.wait()
        (*_, newest) = loop._snapshots._taken
        assert newest.snapshot_id.step == step.number - 1
        if before:
            offsets = ShardOffsets(newest.layout, 0)
            for name, value in before.items():
                assert torch.equal(offsets.view(newest.shards[0], f"model/{name}"), value)
        step.backward(compute)
        loop.optimizer.step()
        before = {name: one.full_tensor().detach().clone() for name, one in loop.model.named_parameters()}
