"""Files of tensors in the safetensors format: written straight from the tensors' memory, readable by any tool.

The format: eight bytes with the length of a JSON header, the header with name, type, shape and place of each tensor,
then their bytes without holes.  Source: https://github.com/huggingface/safetensors#format

Writing is one system call per tensor, which holds no lock of Python: the copy into a file in memory costs what a plain
copy costs, and a file system that is full is an error and not a signal.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Mapping
from pathlib import Path

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


class TensorFileDamaged(ValueError):
    """A file is not what `write_tensors` wrote."""


def fits(tensor: torch.Tensor) -> bool:
    """True for tensors that the format knows: dense, and of a type that it has a name for."""
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type != "meta"
    return is_plain and tensor.layout == torch.strided and tensor.dtype in _NAMES and not tensor.is_quantized


def write_tensors(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    """Write tensors, for all of which `fits` is true, into a new file; raises OSError when it does not take them."""
    # Great elements first: so each tensor lies where its type may lie.
    names = sorted(tensors, key=lambda name: -tensors[name].element_size())
    header, begin = {}, 0
    for name in names:
        end = begin + tensors[name].nbytes
        shape = list(tensors[name].shape)
        header[name] = {"dtype": _NAMES[tensors[name].dtype], "shape": shape, "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        _write(descriptor, memoryview(len(text).to_bytes(8, "little") + text))
        for name in names:
            tensor = tensors[name].detach().resolve_conj().resolve_neg().to("cpu").contiguous()
            _write(descriptor, _memory(tensor))
    finally:
        os.close(descriptor)


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Tensors of a file, on the CPU; raises TensorFileDamaged, and OSError when it cannot be read at all."""
    with path.open("rb") as file:
        try:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _MAX_HEADER)))
            places = {name: one for name, one in header.items() if name != "__metadata__"}
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


def _memory(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous tensor on the CPU; valid while the tensor is."""
    if tensor.nbytes == 0:
        return memoryview(bytearray())
    return memoryview((ctypes.c_char * tensor.nbytes).from_address(tensor.data_ptr())).cast("B")


def _write(descriptor: int, content: memoryview) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
