"""`remora export`: which checkpoint, where to, and what is said about it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from remora.cli.exits import ExitCode
from remora.cli.exports import best_step
from remora.installation import install_command
from remora.torch import Loop
from remora.torch.tensor_files import read_tensors
from remora.views import Checkpoint, MetricPoint
from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService, tar_of


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint of `Loop`."""
    model = nn.Linear(4, 1)
    loop = Loop(
        model, torch.optim.SGD(model.parameters()), data=torch.ones(4, 4), global_batch=4, shards=1, epochs=1
    )
    (tmp_path / "saved").mkdir()
    loop.save(tmp_path / "saved")
    return tmp_path / "saved"


@pytest.fixture
def with_checkpoints(service: FakeService, saved: Path) -> FakeService:
    """A service with a job that has this checkpoint as those of two steps."""
    files = {path.name: path.read_bytes() for path in saved.iterdir()}
    service.archive = tar_of(files)
    service.checkpoints = [
        Checkpoint(
            step=step,
            attempt=1,
            world_size=1,
            committed_at=1.0,
            size_bytes=sum(map(len, files.values())),
            location=f"/x/{step}",
            files={name: len(content) for name, content in files.items()},
        )
        for step in (5, 9)
    ]
    service.add_job(spec={"checkpoint": {"best": {"metric": "loss", "mode": "min"}}})
    return service


def point(step: int, **values: float | None) -> MetricPoint:
    return MetricPoint(step=step, at=1.0, attempt=1, world_size=1, values=values)


def test_a_local_checkpoint_becomes_a_folder(cli: Cli, saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cli("export", "--from", str(saved), "--out", str(out)) == ExitCode.OK
    assert cli.out.startswith(f"{saved}, 2 files, ")
    assert cli.err == f'Load it: safetensors.torch.load_model(model, "{out}/model.safetensors")\n'
    assert read_tensors(out / "model.safetensors").keys() == {"weight", "bias"}
    assert cli("export", "--from", str(saved), "--out", str(out)) == ExitCode.ERROR
    assert "is there already" in cli.err


def test_what_goes_wrong_leaves_no_folder(cli: Cli, saved: Path, tmp_path: Path) -> None:
    content = bytearray((saved / "remora-00001-of-00001.safetensors").read_bytes())
    (saved / "remora-00001-of-00001.safetensors").write_bytes(content[:-1])
    assert cli("export", "--from", str(saved), "--out", str(tmp_path / "out")) == ExitCode.ERROR
    assert "is damaged: it is cut off" in cli.err
    assert [path.name for path in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "name a job, or a folder with a checkpoint by --from"),
        (("last", "--from", "x"), "name a job, or a folder with a checkpoint by --from"),
        (("--from", "nowhere"), "nowhere is no folder"),
        (("--from", ".", "--max-shard-size", "large"), "--max-shard-size 'large': expected"),
    ],
)
def test_wrong_options_are_said_before_anything_is_written(
    arguments: tuple[str, ...], message: str, cli: Cli, tmp_path: Path
) -> None:
    assert cli("export", *arguments, "--out", str(tmp_path / "out")) == ExitCode.USAGE
    assert message in cli.err
    assert list(tmp_path.iterdir()) == []


def test_without_pytorch_it_says_what_to_install(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == "torch" else find(name, *more)
    )
    assert cli("export", "--from", str(tmp_path), "--out", str(tmp_path / "out")) == ExitCode.USAGE
    assert f"is not installed here: {install_command('torch')}" in cli.err


def test_a_jobs_checkpoint_is_downloaded_and_nothing_else_is_left(
    cli: Cli, with_checkpoints: FakeService, tmp_path: Path
) -> None:
    with_checkpoints.outputs = {
        "run/config.json": b"{}",
        "run/tokenizer.json": b"{}",
        "run/huge.bin": b"not asked for",
    }
    before = {path.name for path in tmp_path.iterdir()}
    out = tmp_path / "out"
    assert cli("export", "last", "--format", "huggingface", "-o", str(out), "--json") == ExitCode.OK
    assert (cli.json["from"], cli.json["notes"]) == ("step 9", [])
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= cli.json["files"].keys()
    assert {path.name for path in tmp_path.iterdir()} == {*before, "out"}
    assert not any("huge.bin" in seen.path for seen in with_checkpoints.requests)


def test_the_checkpoint_is_the_one_that_was_asked_for(
    cli: Cli, with_checkpoints: FakeService, tmp_path: Path
) -> None:
    def chosen(which: str) -> Any:
        target = tmp_path / f"out-{which}"
        code = cli("export", "last", "--checkpoint", which, "-o", str(target), "--json")
        return cli.json["from"] if code == ExitCode.OK else (code, cli.err)

    with_checkpoints.metrics = [point(5, loss=0.5), point(7, loss=0.1), point(9, loss=0.7)]
    assert (chosen("latest"), chosen("5"), chosen("best")) == ("step 9", "step 5", "step 5")
    assert chosen("7")[0] == ExitCode.NOT_FOUND
    assert "expected a step, best, or latest" in chosen("newest")[1]
    with_checkpoints.metrics = []
    (tmp_path / "out-best").rename(tmp_path / "before")
    assert "no checkpoint of the job has a value of loss" in chosen("best")[1]
    with_checkpoints.add_job()
    assert "names no metric by which its best checkpoint is chosen" in chosen("best")[1]


def test_the_best_step_is_among_those_that_are_kept() -> None:
    points = [
        point(1, loss=0.1),
        point(2, loss=0.5),
        point(3, loss=None),
        point(4, loss=0.5),
        point(5, other=1.0),
    ]
    least = {"metric": "loss", "mode": "min"}
    assert best_step([2, 3, 4, 5], points, least) == 4, "of equal ones the newest"
    assert best_step([1, 2], points, least) == 1
    assert best_step([1, 2], points, {"metric": "loss", "mode": "max"}) == 2
    assert best_step([3, 5], points, least) is None
