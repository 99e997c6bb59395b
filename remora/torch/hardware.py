"""What decides the bits that a worker computes, beside the script and its settings."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch

#: By name, in the order in which differences are named.
Hardware = Mapping[str, str]

#: Bytes of a description as it travels.
MESSAGE_BYTES = 4096
_CPU_FILE = Path("/proc/cpuinfo")
#: What the kernels of PyTorch's libraries choose themselves by, in `flags` of that file (`Features` on ARM).
_CHOSEN_BY = re.compile(r"(?:avx|amx|fma|f16c|sse4|asimd|sve|bf16|i8mm|neon)\w*")
#: Variables that narrow the choice.
_LIMITS = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "DNNL_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "MKL_CBWR",
    "OPENBLAS_CORETYPE",
)


def refuse_amd(device: torch.device) -> None:
    """Raise RuntimeError for a GPU of AMD, which PyTorch calls a CUDA device, too: nothing here was tried on one."""
    if device.type == "cuda" and torch.version.hip is not None:
        raise RuntimeError(
            f"this PyTorch is built for GPUs of AMD (ROCm {torch.version.hip}), on which Remora does not train: use one"
            " that is built for CUDA, or set HIP_VISIBLE_DEVICES=-1 to train on processors"
        )


def hardware(device: torch.device) -> dict[str, str]:
    """Of this process, for a model on that device."""
    found = {
        "CPU capability": torch.backends.cpu.get_cpu_capability(),
        "CPU threads": str(torch.get_num_threads()),
        "processor": _processor(),
        "limits": " ".join(f"{name}={os.environ[name]}" for name in _LIMITS if name in os.environ) or "none",
        "oneDNN": _version_in(torch.__config__.show(), r"(?:MKL-DNN|oneDNN)\)? v?([\w.]+)"),
        "MKL": _version_in(
            torch.__config__.show(), r"(?:Math Kernel|oneAPI Math Kernel) Library Version ([\w.-]+)"
        ),
        "PyTorch": torch.__version__,
    }
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        found |= {
            "GPU": properties.name,
            "compute capability": f"{properties.major}.{properties.minor}",
            "multiprocessors": str(properties.multi_processor_count),
            "CUDA": str(torch.version.cuda),
            "cuDNN": str(torch.backends.cudnn.version()),
            "NCCL": ".".join(map(str, torch.cuda.nccl.version())),
        }
    return found


def _processor() -> str:
    """Maker and instructions of the processor, as far as the system says."""
    try:
        text = _CPU_FILE.read_text()[: 1 << 16]
    except OSError:
        return "unknown"
    return parse_processor(text)


def parse_processor(text: str) -> str:
    """Maker and instructions in the first paragraph of a `/proc/cpuinfo`."""
    fields = {
        name.strip(): value.strip()
        for name, _, value in (line.partition(":") for line in text.split("\n\n")[0].splitlines())
    }
    maker = fields.get("vendor_id") or fields.get("CPU implementer") or "unknown"
    flags = (fields.get("flags") or fields.get("Features") or "").split()
    return " ".join([maker, *sorted(one for one in flags if _CHOSEN_BY.fullmatch(one))])


def _version_in(text: str, pattern: str) -> str:
    match = re.search(pattern, text)
    return match.group(1) if match else "none"


def encode(one: Hardware) -> torch.Tensor:
    """As bytes of a fixed number, to be gathered."""
    text = json.dumps(one).encode()[:MESSAGE_BYTES]
    return torch.frombuffer(bytearray(text.ljust(MESSAGE_BYTES)), dtype=torch.uint8)


def decode(message: Sequence[int]) -> dict[str, str]:
    """What `encode` encoded; nothing where that was too long."""
    try:
        return dict(json.loads(bytes(message)))
    except ValueError:
        return {}


def difference(workers: Iterable[Hardware]) -> str:
    """The first rank that is not like rank 0, and in what."""
    first, *others = workers
    for rank, one in enumerate(others, 1):
        names = [name for name in {**first, **one} if one.get(name) != first.get(name)]
        if names:
            what = ", ".join(f"{name} ({_short(one, first, name)})" for name in names)
            return f"rank {rank} differs from rank 0 in {what}"
    return "they differ"


def _short(one: Hardware, first: Hardware, name: str) -> str:
    mine, theirs = one.get(name, "none").split(), first.get(name, "none").split()
    # Of long lists only what is not in the other one.
    more, less = [w for w in mine if w not in theirs], [w for w in theirs if w not in mine]
    return f"{' '.join(more) or 'nothing more'}, and {' '.join(less) or 'nothing more'} on rank 0"
