"""A checkpoint as files that other programs read: names, bytes, and what a stranger's folder cannot do."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn import functional

from remora.export_formats import ExportFormat, config_names
from remora.torch import Loop
from remora.torch.exporting import Exported, ExportRefused, export_checkpoint
from remora.torch.exporting.cut_files import cut
from remora.torch.layout import FILE, Writer, share_of, write
from remora.torch.sharded import ShardedLoop, checkpoint_io
from remora.torch.sharded.grid import Grid
from remora.torch.sharded.mesh import close_mesh
from remora.torch.sharded.reshard_plan import Split
from remora.torch.sharded.state_shards import ShardOffsets, TensorSpec
from remora.torch.tensor_files import MappedTensors, read_tensors, write_tensors

DATA = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
ARGUMENTS: dict[str, Any] = {"data": DATA, "global_batch": 8, "shards": 2, "total_steps": 3, "seed": 3}


@pytest.fixture(autouse=True)
def _without_a_group() -> Iterator[None]:
    yield
    close_mesh()


class Tied(nn.Module):
    """Two layers with one weight, a buffer that is saved and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight
        self.register_buffer("scratch", torch.ones(2), persistent=False)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.first(batch)))


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return functional.mse_loss(model(batch), batch.flip(1))


def adam(model: nn.Module) -> torch.optim.Optimizer:
    biases = [one for name, one in model.named_parameters() if name.endswith("bias")]
    weights = [one for name, one in model.named_parameters() if not name.endswith("bias")]
    return torch.optim.AdamW([{"params": biases, "weight_decay": 0.0}, {"params": weights}], lr=0.01)


def trained(model: nn.Module, **more: Any) -> tuple[Loop, torch.optim.Optimizer]:
    optimizer = adam(model)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
    loop = Loop(model, optimizer, scheduler=scheduler, **ARGUMENTS, **more)
    for step in loop:
        step.backward(loss_of)
        optimizer.step()
        scheduler.step()
    return loop, optimizer


def exported(source: Path, target: Path, form: str = "safetensors", **more: Any) -> Exported:
    target.mkdir()
    return export_checkpoint(source, target, ExportFormat(form), **more)


def made(folder: Path, name: str) -> Path:
    (folder / name).mkdir()
    return folder / name


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_weights_have_the_models_names_and_tied_ones_are_there_once(tmp_path: Path) -> None:
    model = Tied()
    loop, optimizer = trained(model, state={"ema": nn.Linear(2, 2)})
    loop.save(saved := made(tmp_path, "saved"))
    found = exported(saved, out := tmp_path / "out")
    weights = read_tensors(out / "model.safetensors")
    expected = {name: one for name, one in model.state_dict().items() if name != "last.weight"}
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], one) for name, one in expected.items())
    header = MappedTensors(out / "model.safetensors").metadata
    assert header == {"format": "pt", "last.weight": "first.weight"}, "as save_model of safetensors writes it"
    of_optimizer = read_tensors(out / "optimizer.safetensors")
    for name, one in model.named_parameters():
        for key, value in optimizer.state[one].items():
            assert torch.equal(of_optimizer[f"state.{name}.{key}"], value)
    state = json.loads((out / "training_state.json").read_text())
    assert (state["step"], state["settings"]["global_batch"]) == (3, 8)
    groups = state["optimizers"]["optimizer"]["param_groups"]
    assert [one["params"] for one in groups] == [["first.bias", "norm.bias"], ["first.weight", "norm.weight"]]
    assert state["parts"]["scheduler"]["last_epoch"] == 3
    assert set(read_tensors(out / "other_state.safetensors")) == {"ema.weight", "ema.bias"}
    assert found.notes == ()
    assert found.files == {path.name: path.stat().st_size for path in out.iterdir()}
    assert "safetensors.torch.load_model(" in found.load


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_torch_distributed_checkpoint_loads_model_and_optimizer(ranks: int, tmp_path: Path) -> None:
    model = Tied()
    loop, optimizer = trained(model)
    saved = made(tmp_path, "saved")
    for rank in range(ranks):
        share = share_of(loop._saved_state(loop._reached()), Writer(rank, ranks), ("model", "optimizer"))
        write(share, Writer(rank, ranks), saved)
    exported(saved, tmp_path / "out", "dcp")
    check_loaded(tmp_path / "out", model, optimizer)


def check_loaded(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """What PyTorch's own functions load into a new model is that of the trained one."""
    other = Tied()
    other_optimizer = adam(other)
    weights, state = get_state_dict(other, other_optimizer)
    content = {"model": weights, "optimizer": state}
    dcp.load(content, checkpoint_id=folder, no_dist=True)
    set_state_dict(
        other, other_optimizer, model_state_dict=content["model"], optim_state_dict=content["optimizer"]
    )
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value), name
    mine, others = optimizer.state_dict(), other_optimizer.state_dict()
    assert [one["weight_decay"] for one in others["param_groups"]] == [0.0, 0.01]
    assert [one["lr"] for one in others["param_groups"]] == [one["lr"] for one in mine["param_groups"]]
    assert others["state"].keys() == mine["state"].keys()
    for number, values in mine["state"].items():
        for key, value in values.items():
            assert torch.equal(others["state"][number][key], value), (number, key)


def build(mesh: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    model = Tied()
    fully_shard(model, mesh=mesh)
    optimizer = adam(model)
    return model, optimizer, torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)


def write_blocks(loop: ShardedLoop, folder: Path, ranks: int) -> None:
    """What as many ranks write of the state of one."""
    sharded = loop._present.sharded
    state = {**loop._capture_state(), **sharded.names()}
    whole = {name: one.full_tensor() for name, one in sharded.tensors()}
    grid = Grid(1, ranks, 1)
    layout = {
        name: TensorSpec(tuple(one.shape), one.dtype, (Split(0, ranks, 1),)) for name, one in whole.items()
    }
    for rank in range(ranks):
        offsets = ShardOffsets(layout, rank)
        memory = torch.empty(offsets.size_bytes, dtype=torch.uint8)
        for name, spec in layout.items():
            box = tuple(slice(rows.start, rows.stop) for rows in spec.box(rank))
            offsets.view(memory, name).copy_(whole[name][box])
        blocks = checkpoint_io.blocks_of(layout, offsets, memory, grid, rank)
        checkpoint_io.save(folder, blocks, Writer(rank, ranks), state if rank == 0 else None)


def test_blocks_of_any_number_of_ranks_become_the_bytes_of_a_model_that_was_whole(tmp_path: Path) -> None:
    sharded = ShardedLoop(build, **ARGUMENTS)
    for step in sharded:
        step.backward(loss_of)
        sharded.optimizer.step()
        sharded.scheduler.step()
    for ranks in (1, 2, 3):
        write_blocks(sharded, made(tmp_path, f"saved-{ranks}"), ranks)
        exported(tmp_path / f"saved-{ranks}", tmp_path / f"out-{ranks}")
    exported(tmp_path / "saved-3", tmp_path / "dcp", "dcp")
    close_mesh()
    model = Tied()
    # What a sharded checkpoint says, taken over by a loop whose workers hold the whole model.
    loop, optimizer = trained(model)
    weights = read_tensors(tmp_path / "out-2" / "model.safetensors")
    model.load_state_dict({**weights, "last.weight": weights["first.weight"]})
    state = read_tensors(tmp_path / "out-2" / "optimizer.safetensors")
    for name, one in model.named_parameters():
        for key, value in optimizer.state[one].items():
            value.copy_(state[f"state.{name}.{key}"])
    loop.save(made(tmp_path, "saved"))
    exported(tmp_path / "saved", tmp_path / "out")
    expected = files_of(tmp_path / "out")
    assert set(expected) == {"model.safetensors", "optimizer.safetensors", "training_state.json"}
    for ranks in (1, 2, 3):
        assert files_of(tmp_path / f"out-{ranks}") == expected
    check_loaded(tmp_path / "dcp", model, optimizer)


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ({"a": 3, "b": 3, "c": 1}, 6, [["a", "b"], ["c"]]),
        ({"a": 9, "b": 1}, 6, [["a"], ["b"]]),
        ({"a": 1, "b": 9, "c": 1}, 6, [["a"], ["b"], ["c"]]),
        ({}, 6, []),
    ],
)
def test_files_are_cut_in_order(sizes: dict[str, int], most: int, expected: list[list[str]]) -> None:
    assert list(cut(sizes, most)) == expected


def test_a_model_that_is_cut_has_an_index(tmp_path: Path) -> None:
    loop, _ = trained(model := nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    loop.save(made(tmp_path, "saved"))
    found = exported(tmp_path / "saved", out := tmp_path / "out", max_shard_bytes=80)
    assert sorted(path.name for path in out.glob("model*")) == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "model.safetensors.index.json",
    ]
    index = json.loads((out / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": 160}
    assert index["weight_map"].keys() == model.state_dict().keys()
    for name, file in index["weight_map"].items():
        assert torch.equal(read_tensors(out / file)[name], model.state_dict()[name])
    assert "glob" in found.load


def test_several_optimizers_and_a_compiled_model_have_plain_names(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    compiled = torch.compile(model, backend="eager")
    first = torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9)
    second = torch.optim.Adam(model[1].parameters())
    loop = Loop(compiled, [first, second], **ARGUMENTS)
    for step in loop:
        step.backward(lambda _, batch: loss_of(model, batch))
        first.step()
        second.step()
    loop.save(made(tmp_path, "saved"))
    exported(tmp_path / "saved", out := tmp_path / "out")
    assert read_tensors(out / "model.safetensors").keys() == model.state_dict().keys()
    assert "state.0.weight.momentum_buffer" in read_tensors(out / "optimizer-0.safetensors")
    assert "state.1.weight.exp_avg" in read_tensors(out / "optimizer-1.safetensors")
    exported(tmp_path / "saved", tmp_path / "dcp", "dcp")
    state = {"optimizer": {"state": {"0.weight": {"momentum_buffer": torch.zeros(4, 4)}}}}
    dcp.load(state, checkpoint_id=tmp_path / "dcp", no_dist=True)
    momentum = first.state[model[0].weight]["momentum_buffer"]
    assert torch.equal(state["optimizer"]["state"]["0.weight"]["momentum_buffer"], momentum)


def test_a_description_of_the_model_is_copied_or_asked_for(tmp_path: Path) -> None:
    trained(nn.Linear(4, 4))[0].save(made(tmp_path, "saved"))
    found = exported(tmp_path / "saved", tmp_path / "without", "huggingface")
    assert "--config FOLDER" in found.notes[0]
    config = made(tmp_path, "config")
    for name in ("config.json", "tokenizer.json", "train.py"):
        (config / name).write_text("{}")
    found = exported(tmp_path / "saved", tmp_path / "with", "huggingface", config=config)
    assert found.notes == ()
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= found.files.keys()
    assert "train.py" not in found.files
    with pytest.raises(ExportRefused, match=r"saved holds no config\.json"):
        exported(tmp_path / "saved", tmp_path / "wrong", "huggingface", config=tmp_path / "saved")


def test_a_description_is_found_among_the_outputs_of_a_job() -> None:
    names = ["a/b/config.json", "run/config.json", "run/tokenizer.json", "run/x.bin", "tokenizer.json"]
    assert config_names(names) == {"config.json": "run/config.json", "tokenizer.json": "run/tokenizer.json"}
    assert config_names(["model/tokenizer.json"]) == {}


def test_a_checkpoint_without_names_has_its_weights_and_says_what_is_left_out(tmp_path: Path) -> None:
    loop, _ = trained(nn.Linear(4, 4))
    state = loop._capture_state(loop._reached())
    write(share_of(state, Writer(), ()), Writer(), made(tmp_path, "saved"))
    found = exported(tmp_path / "saved", out := tmp_path / "out")
    assert sorted(path.name for path in out.iterdir()) == ["model.safetensors", "training_state.json"]
    assert "does not say which parameters" in found.notes[0]


def test_what_others_wrote_is_copied_or_named(tmp_path: Path) -> None:
    pretrained = made(tmp_path, "pretrained")
    write_tensors({"weight": torch.ones(2)}, pretrained / "model.safetensors")
    (pretrained / "config.json").write_text("{}")
    for form in ("huggingface", "safetensors"):
        exported(pretrained, tmp_path / form, form)
        assert files_of(tmp_path / form) == files_of(pretrained)
    with pytest.raises(ExportRefused, match="copied with --format huggingface"):
        exported(pretrained, tmp_path / "dcp", "dcp")
    distributed = made(tmp_path, "distributed")
    dcp.save({"model": {"weight": torch.ones(2)}}, checkpoint_id=distributed, no_dist=True)
    exported(distributed, tmp_path / "copied", "dcp")
    assert files_of(tmp_path / "copied") == files_of(distributed)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "it holds no file"),
        (["weights.pt"], "only the script that wrote it knows its format"),
        (["global_step3/zero_pp_rank_0_mp_rank_00_optim_states.pt", "latest"], r"zero_to_fp32\.py"),
        (["epoch=3.ckpt"], "LightningModule.load_from_checkpoint"),
    ],
)
def test_what_cannot_be_exported_is_said_with_what_to_use(
    names: list[str], message: str, tmp_path: Path
) -> None:
    saved = made(tmp_path, "saved")
    for name in names:
        (saved / name).parent.mkdir(exist_ok=True)
        (saved / name).write_bytes(b"x")
    with pytest.raises(ExportRefused, match=message):
        exported(saved, tmp_path / "out")


def of_a_stranger(folder: Path, state: dict[str, Any], **tensors: torch.Tensor) -> Path:
    saved = made(folder, "saved")
    torch.save({"format": 2, "progress": [1, 0, 0], "settings": {}, **state}, saved / FILE)
    if tensors:
        write_tensors(tensors, saved / Writer().file)
    return saved


class Harmful:
    def __reduce__(self) -> Any:
        return print, ("was unpickled",)


def bomb() -> list[Any]:
    value: list[Any] = []
    for _ in range(60):
        value = [value, value]
    return value


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"parts": {"model": {"w": Harmful()}}}, "cannot be read"),
        ({"parts": {"model": {"w": {"remora.tensor": "w"}}, "x": bomb()}}, "too many values"),
        ({"parts": {"model": {"w": {"remora.tensor": ["w"]}}}}, "is damaged"),
        ({"parts": {"model": {"w": {"remora.tensor": "other"}}}}, "is in none of the files"),
        ({"parts": {"model": {"__metadata__": {"remora.tensor": "w"}}}}, "__metadata__"),
        ({"parts": {"model": {str(n): {"remora.tensor": "w"} for n in range(99)}}}, "larger than its files"),
        ({"parts": {"model": {3: {"remora.tensor": "w"}}}}, "is no name of a tensor"),
        ({"parts": {"model": {}}}, "has no tensors"),
        ({"parts": {}}, "is damaged"),
        ({"parts": 7}, "is damaged"),
    ],
)
def test_a_strangers_state_is_refused(
    state: dict[str, Any], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = of_a_stranger(tmp_path, state, w=torch.ones(1000))
    with pytest.raises(ExportRefused, match=message):
        exported(saved, tmp_path / "out")
    assert "was unpickled" not in capsys.readouterr().out


def test_a_part_named_as_a_path_stays_inside(tmp_path: Path) -> None:
    parts = {
        "model": {"../../w": {"remora.tensor": "w"}},
        "../../part": {"a": {"remora.tensor": "w2"}},
        "optimizer-../../x": {"state": {}, "param_groups": []},
    }
    optimized = {"optimizer-../../x": []}
    saved = of_a_stranger(
        tmp_path, {"parts": parts, "optimized": optimized}, w=torch.ones(3), w2=torch.ones(2)
    )
    exported(saved, out := tmp_path / "out")
    assert {path.name for path in out.iterdir()} == {
        "model.safetensors",
        "other_state.safetensors",
        "training_state.json",
    }
    assert {path.name for path in tmp_path.iterdir()} == {"saved", "out"}


def test_links_and_packed_files_of_a_stranger_are_refused(tmp_path: Path) -> None:
    saved = of_a_stranger(tmp_path, {"parts": {"model": {"w": {"remora.tensor": "w"}}}}, w=torch.ones(3))
    (saved / "config.json").symlink_to("/etc/passwd")
    with pytest.raises(ExportRefused, match="is no plain file"):
        exported(saved, tmp_path / "linked", "huggingface")
    (saved / "config.json").unlink()
    with zipfile.ZipFile(saved / FILE) as plain:
        content = {one: plain.read(one) for one in plain.namelist()}
    with zipfile.ZipFile(saved / FILE, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, value in content.items():
            packed.writestr(name, value)
    with pytest.raises(ExportRefused, match="it is compressed"):
        exported(saved, tmp_path / "packed")


def test_a_tensor_larger_than_its_blocks_takes_no_memory(tmp_path: Path) -> None:
    saved = of_a_stranger(
        tmp_path,
        {
            "parts": {"sharded": {"scalars": {}, "groups": [], "buffers": {}}},
            "model": {"w": "w"},
        },
    )
    block = checkpoint_io.Block((10**15,), (0,), torch.ones(3))
    checkpoint_io.save(saved, {"model/w": block}, Writer(), None)
    with pytest.raises(ExportRefused, match="larger than its files"):
        exported(saved, tmp_path / "out")
