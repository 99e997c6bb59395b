"""A state in files: divided among ranks by size, whole again for any number of readers, damaged never unnoticed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from remora.torch.layout import FILE, Share, Writer, assign, read, share_of, write
from remora.torch.tensor_files import MappedTensors, TensorFileDamaged, read_tensors, write_tensors

DIVIDED = ("model", "optimizer")


def state() -> dict[str, Any]:
    """What a loop captures, with everything that may lie in it."""
    generator = torch.Generator().manual_seed(1)
    tied = torch.randn(64, 64, generator=generator)
    return {
        "format": 2,
        "progress": [3, 1, 2],
        "parts": {
            "model": {"embed": tied, "head": tied, "bias": torch.randn(5, 7, generator=generator)[:, ::2]},
            "optimizer": {
                "state": {
                    0: {"step": torch.tensor(3.0), "exp_avg": torch.randn(64, 64, dtype=torch.float64)}
                },
                "param_groups": [{"lr": 0.1, "betas": (0.9, 0.99), "params": [0]}],
            },
            "ema": {"a/b": torch.ones(3), "a": {"b": torch.zeros(3)}, 1: torch.ones(1), "1": torch.zeros(1)},
        },
    }


def written(whole: dict[str, Any], ranks: int, folder: Path) -> list[Share]:
    """Every rank writes its share; those behind the first one hold the parts that are divided only."""
    shares = []
    for rank in range(ranks):
        held = whole if rank == 0 else {**whole, "parts": {name: whole["parts"][name] for name in DIVIDED}}
        writer = Writer(rank, ranks)
        shares.append(share_of(held, writer, DIVIDED))
        write(shares[-1], writer, folder)
    return shares


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and all(map(equal, one, other))
    return bool(one == other)


@pytest.mark.parametrize("ranks", [1, 2, 3, 9])
def test_what_ranks_wrote_together_is_read_as_a_whole(ranks: int, tmp_path: Path) -> None:
    whole = state()
    shares = written(whole, ranks, tmp_path)
    assert equal(read(tmp_path), whole)
    names = [name for share in shares for name in share.tensors]
    assert len(names) == len(set(names)), "no tensor is written twice"
    assert [share.skeleton is not None for share in shares] == [True] + [False] * (ranks - 1)
    assert sum("embed" in name or "head" in name for name in names) == 1, (
        "one tensor in two places is one tensor"
    )


@given(sizes=st.dictionaries(st.text(max_size=4), st.integers(0, 1000), max_size=30), ranks=st.integers(1, 8))
def test_tensors_are_divided_evenly(sizes: dict[str, int], ranks: int) -> None:
    owners = assign(sizes, ranks)
    assert owners.keys() == sizes.keys()
    assert owners == assign(dict(reversed(sizes.items())), ranks), "every rank assigns alike"
    loads = [sum(sizes[name] for name, one in owners.items() if one == rank) for rank in range(ranks)]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)


DTYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.uint16,
]  # fmt: skip


def test_tensors_of_every_kind_come_back(tmp_path: Path) -> None:
    tensors = {f"{dtype}": torch.arange(6).reshape(2, 3).to(dtype) for dtype in DTYPES}
    tensors |= {
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(2.5),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }
    tensors |= {"conjugate": torch.tensor([1 + 2j], dtype=torch.complex64).conj()}
    write_tensors(tensors, tmp_path / "file")
    found = read_tensors(tmp_path / "file")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        expected = tensor.detach().resolve_conj().contiguous().flatten()
        assert torch.equal(found[name].flatten().view(torch.uint8), expected.view(torch.uint8)), name


def test_what_the_format_does_not_know_travels_with_the_rest(tmp_path: Path) -> None:
    sparse = torch.eye(3).to_sparse()
    whole = {"parts": {"model": {"double": torch.ones(2, dtype=torch.complex128), "sparse": sparse}}}
    written(whole | {"parts": whole["parts"] | {"optimizer": {}}}, 1, tmp_path)
    found = read(tmp_path)["parts"]["model"]
    assert found["double"].dtype == torch.complex128
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3))


def test_the_files_are_safetensors(tmp_path: Path) -> None:
    """As its page describes the format: a length, a header that begins with a brace, no holes."""
    write_tensors({"w": torch.ones(3), "b": torch.ones(5, dtype=torch.int8)}, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    length = int.from_bytes(content[:8], "little")
    assert (length % 8, content[8:9]) == (0, b"{")
    assert json.loads(content[8 : 8 + length]) == {
        "w": {"dtype": "F32", "shape": [3], "data_offsets": [0, 12]},
        "b": {"dtype": "I8", "shape": [5], "data_offsets": [12, 17]},
    }
    assert len(content) == 8 + length + 17


@pytest.mark.parametrize("left", [0, 5, 12, 100, -1])
def test_a_torn_file_is_reported(left: int, tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors({"w": torch.ones(30)}, path)
    path.write_bytes(path.read_bytes()[:left])
    with pytest.raises(TensorFileDamaged, match="file is damaged"):
        read_tensors(path)


def test_a_missing_part_is_named_by_the_tensor_that_it_held(tmp_path: Path) -> None:
    written(state(), 2, tmp_path)
    (tmp_path / Writer(1, 2).file).unlink()
    with pytest.raises(TensorFileDamaged, match="is in none of the files"):
        read(tmp_path)
    (tmp_path / FILE).write_bytes(b"x")
    with pytest.raises(ValueError):  # noqa: PT011 - any sentence will do
        read(tmp_path)


def test_a_file_that_is_larger_than_the_memory_is_mapped(tmp_path: Path) -> None:
    """Four TiB that take no place on the disk."""
    path, count = tmp_path / "file", 1 << 40
    header = json.dumps({"w": {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + 4 * count)
    assert MappedTensors(path).view("w")[-1] == 0.0
