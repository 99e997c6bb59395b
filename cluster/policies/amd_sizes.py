"""Machine sizes with GPUs of AMD, which no pool may have (pure)."""

from __future__ import annotations

import re

#: Azure's series with GPUs of AMD: NDv5 with MI300X and what follows it, NVv4 (MI25), NGads (V620) and NVads (V710).
#: https://learn.microsoft.com/azure/virtual-machines/sizes/gpu-accelerated
_SIZES = re.compile(
    r"Standard_(N[A-Z]+\d+[a-z]*_(MI\d+[A-Z]*|V620|V710)(_v\d+)?|NV\d+as_v4)(@.*)?", re.IGNORECASE
)
_MODELS = re.compile(r"(AMD|Radeon|Instinct|MI\d{2,3}[A-Z]*|V620|V710)\b.*", re.IGNORECASE)


def why_refused(size: str, gpu: str = "") -> str | None:
    """One sentence where the size, or the model of its GPUs, is AMD's; None for any other."""
    if _SIZES.fullmatch(size) is None and _MODELS.match(gpu) is None:
        return None
    return (
        f"{size} has GPUs of AMD, on which Remora does not train: PyTorch for ROCm and RCCL were never tested with it;"
        " use a size with GPUs of NVIDIA, or without GPUs"
    )
