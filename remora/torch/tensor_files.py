"""Tensors in files of the safetensors format, which any tool can read: written, read, and mapped.

A file is eight bytes with the length of a JSON header, the header with name, type, shape and place of each tensor, then
their bytes without holes.  Source: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

_NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16", torch.int64: "I64",
    torch.int32: "I32", torch.int16: "I16", torch.int8: "I8", torch.uint64: "U64", torch.uint32: "U32",
    torch.uint16: "U16", torch.uint8: "U8", torch.bool: "BOOL", torch.complex64: "C64",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
_TYPES = {name: dtype for dtype, name in _NAMES.items()}
#: Bytes of a header that is still believed.
_MAX_HEADER = 256 << 20
#: What a header has beside the tensors.
_METADATA = "__metadata__"
#: Nothing is written to mapped files, but `frombuffer` warns of memory that it cannot write to.  Without the second
#: flag (of Linux; before Python 3.13 without a name) files that are larger than the machine's memory are refused.
_MAPPING: dict[str, int] = (
    {"flags": mmap.MAP_PRIVATE | getattr(mmap, "MAP_NORESERVE", 0x4000)}
    if sys.platform == "linux"
    else {"access": mmap.ACCESS_COPY}
)


class TensorFileDamaged(ValueError):
    """A file is not what `write_tensors` wrote."""


def holds(dtype: torch.dtype) -> bool:
    """True for types of numbers that the format has a name for."""
    return dtype in _NAMES


def fits(tensor: torch.Tensor) -> bool:
    """True for tensors that the format knows: dense, and of a type that it has a name for."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type != "meta"
    return is_plain and tensor.layout == torch.strided and holds(tensor.dtype) and not tensor.is_quantized


def write_tensors(
    tensors: Mapping[str, torch.Tensor], path: Path, metadata: Mapping[str, str] | None = None
) -> None:
    """Write tensors, for all of which `fits` is true, into a new file; raises OSError when it does not take them.

    `metadata`: what the header says beside them, as `__metadata__`.
    Writing is one system call per tensor, which holds no lock of Python: the copy into a file in memory costs what a
    plain copy costs, and a file system that is full is an error and not a signal.
    """
    kinds = {name: (one.shape, one.dtype) for name, one in tensors.items()}
    write_each(kinds, tensors.__getitem__, path, metadata)


def write_each(
    kinds: Mapping[str, tuple[Sequence[int], torch.dtype]],
    load: Callable[[str], torch.Tensor],
    path: Path,
    metadata: Mapping[str, str] | None = None,
    mode: int = 0o600,
) -> None:
    """The same of tensors that need not be in memory together: `load` gives each when it is written.

    `kinds`: shape and type of each.  `mode`: of the new file.
    """
    # Great elements first: so each tensor lies where its type may lie.
    names = sorted(kinds, key=lambda name: -kinds[name][1].itemsize)
    header: dict[str, Any] = {} if metadata is None else {_METADATA: dict(metadata)}
    begin = 0
    for name in names:
        shape, dtype = kinds[name]
        end = begin + nbytes_of(shape, dtype)
        header[name] = {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        _write(descriptor, memoryview(len(text).to_bytes(8, "little") + text))
        for name in names:
            tensor = load(name).detach().resolve_conj().resolve_neg().to("cpu").contiguous()
            _write(descriptor, _memory(tensor))
            # Before the next one is loaded.
            del tensor
    finally:
        os.close(descriptor)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a file, on the CPU; raises TensorFileDamaged, and OSError when it cannot be read at all."""
    with path.open("rb") as file:
        try:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _MAX_HEADER)))
            places = {name: one for name, one in header.items() if name != _METADATA}
            tensors = {}
            for name, one in sorted(places.items(), key=lambda item: item[1]["data_offsets"][0]):
                tensor = torch.empty(one["shape"], dtype=_TYPES[one["dtype"]])
                begin, end = one["data_offsets"]
                file.seek(8 + length + begin)
                # Whatever the header says, what is read is what the tensor takes.
                if file.readinto(_memory(tensor)) != end - begin:
                    raise TensorFileDamaged(f"{path.name} is damaged: {name} is cut off")  # noqa: TRY301
                tensors[name] = tensor
        except TensorFileDamaged:
            raise
        except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
            raise TensorFileDamaged(f"{path.name} is damaged: {error}") from error
    return tensors


class MappedTensors:
    """The tensors of a file that is not read but mapped: of a tensor only what is used leaves the storage."""

    def __init__(self, path: Path) -> None:
        """Raises TensorFileDamaged, and OSError when the file cannot be read at all."""
        self._path = path
        with path.open("rb") as file:
            try:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(length, _MAX_HEADER)))
                #: What the header has beside the tensors.
                self.metadata: dict[str, str] = dict(header.pop(_METADATA, {}))
                self._begin = 8 + length
                self._places = {name: self._place(one) for name, one in header.items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise TensorFileDamaged(f"{path.name} is damaged: {error}") from error
            end = max((begin + nbytes_of(*kind) for begin, *kind in self._places.values()), default=0)
            if self._begin + end > os.fstat(file.fileno()).st_size:
                raise TensorFileDamaged(f"{path.name} is damaged: it is cut off")
            self._memory = mmap.mmap(file.fileno(), 0, **_MAPPING)

    def shapes(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shape and type of each tensor, by name."""
        return {name: (shape, dtype) for name, (_, shape, dtype) in self._places.items()}

    def view(self, name: str) -> torch.Tensor:
        """A tensor, which must not be changed."""
        begin, shape, dtype = self._places[name]
        count = math.prod(shape)
        if count == 0:
            return torch.empty(shape, dtype=dtype)
        first = self._begin + begin
        return torch.frombuffer(self._memory, dtype=dtype, count=count, offset=first).view(shape)

    @staticmethod
    def _place(one: Mapping[str, Any]) -> tuple[int, tuple[int, ...], torch.dtype]:
        shape, dtype = tuple(int(size) for size in one["shape"]), _TYPES[one["dtype"]]
        begin, end = one["data_offsets"]
        if begin < 0 or min(shape, default=0) < 0 or end - begin != nbytes_of(shape, dtype):
            raise ValueError("a tensor lies where its bytes cannot lie")
        return begin, shape, dtype


def nbytes_of(shape: Sequence[int], dtype: torch.dtype) -> int:
    """Bytes of a tensor."""
    return math.prod(shape) * int(dtype.itemsize)


def _memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU; valid while the tensor is."""
    if tensor.nbytes == 0:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def _write(descriptor: int, content: memoryview) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
