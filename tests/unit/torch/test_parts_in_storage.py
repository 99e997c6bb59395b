"""Parts that several ranks wrote, in a storage: damage to any of them is found before a script reads it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from remora.torch.layout import Writer, share_of, write
from remora.torch.state import LoopState, Progress, read
from trainers.checkpoints.catalog import Catalog, CheckpointDamaged, Damage
from trainers.checkpoints.manifest import Manifest
from trainers.confined_folders import ConfinedFolder
from trainers.storage import Storage

RANKS = 3


class Job:
    """A network whose checkpoints three ranks write; at step s every weight is s."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.catalog = Catalog(Storage(folder / "storage"), "job_1")

    def save(self, step: int) -> Path:
        """Write and commit a checkpoint; returns its folder."""
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(RANKS)))
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, step)
        state = LoopState({"model": model}, {}).capture(Progress(step, 0, step))
        files = []
        for rank in range(RANKS):
            scratch = self.folder / f"{step}-{rank}"
            scratch.mkdir()
            writer = Writer(rank, RANKS)
            write(share_of(state, writer, ("model",)), writer, scratch)
            with ConfinedFolder(scratch) as folder:
                files += self.catalog.put(folder, step, 1, 1, rank)
        manifest = Manifest(
            job_id="job_1", step=step, attempt=1, generation=1, world_size=RANKS, committed_at=0.0, files=tuple(files)
        )  # fmt: skip
        return Path(self.catalog.commit(manifest))

    def fetched(self, target: Path) -> tuple[Path, list[Damage]]:
        """The newest one that can be used, as workers get it, and those that were passed over."""
        while True:
            manifest, damages = self.catalog.newest()
            assert manifest is not None
            try:
                return self.catalog.fetch(manifest, target / manifest.folder), damages
            except CheckpointDamaged as error:
                is_damaged = self.catalog.refuse_if_damaged(error.folder, error.file)
            assert is_damaged


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("rank", range(RANKS))
@pytest.mark.parametrize("damage", [cut, flip, Path.unlink])
def test_the_one_before_is_taken_when_any_part_is_damaged(
    damage: Callable[[Path], None], rank: int, tmp_path: Path
) -> None:
    job = Job(tmp_path)
    job.save(10)
    newest = job.save(20)
    part = newest / Writer(rank, RANKS).file
    damage(part)
    folder, damages = job.fetched(tmp_path / "fetched")
    assert [one.step for one in damages] == [20]
    assert part.name in damages[0].why
    state = read(folder)
    assert state["progress"][0] == 10
    assert all((weight == 10).all() for weight in state["parts"]["model"].values())


def test_what_was_half_deleted_is_no_checkpoint(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.save(10)
    for path in job.save(20).glob("remora-manifest.json"):
        path.unlink()
    manifest, damages = job.catalog.newest()
    assert manifest is not None
    assert (manifest.step, damages) == (10, [])
