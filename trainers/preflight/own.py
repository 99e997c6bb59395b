"""Measures the devices of this machine, and prints what it has found as one line of JSON.

python -m trainers.preflight.own LIMIT_S

On each GPU, or on the processor where there is none: the memory, a pattern written to a part of it and read again, and
a product whose result is known.  It judges nothing: a machine that computes wrongly might compare wrongly, too.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
import time
from typing import Any

import psutil

from trainers.preflight.product import SIZE, digest_of

#: Products on each device: a fault that comes and goes has more than one chance to be seen.
_PRODUCTS = 8
#: Bytes of a device's memory that are written and read, at most, and of what is free.
_MOST_BYTES, _PART = 2**30, 0.25
_PATTERNS = (0x5A5A5A5A, -0x5A5A5A5B)


def measure() -> dict[str, Any]:
    """What `service.queue.preflights.read_measured` reads."""
    found: dict[str, Any] = {
        "device": "cpu",
        "gpus": None,
        "memory_bytes": psutil.virtual_memory().total,
        "digests": [],
        "product_s": 0.0,
        "bad_memory": [],
        "hip": None,
        "problem": None,
    }
    try:
        import torch
    except ModuleNotFoundError as error:
        if error.name != "torch":
            found["problem"] = f"PyTorch cannot be imported: {error}"[:300]
        return found
    except ImportError as error:
        found["problem"] = f"PyTorch cannot be imported: {error}"[:300]
        return found
    found["hip"] = torch.version.hip
    if torch.version.hip is not None:
        # Its GPUs call themselves CUDA's.
        return found
    found["gpus"] = torch.cuda.device_count() if torch.cuda.is_available() else 0
    places = [torch.device("cuda", index) for index in range(found["gpus"])] or [torch.device("cpu")]
    try:
        for place in places:
            _measure_on(place, found)
    except Exception as error:  # CUDA's errors have several classes
        found["problem"] = f"{place}: {error}".splitlines()[0][:300]
    return found


def _measure_on(place: Any, found: dict[str, Any]) -> None:
    import torch

    if place.type == "cuda":
        free, total = torch.cuda.mem_get_info(place)
        found["memory_bytes"] = total if not found["digests"] else min(total, found["memory_bytes"])
        found["device"] = torch.cuda.get_device_name(place)[:100]
    else:
        free = psutil.virtual_memory().available
    if not _keeps_patterns(place, int(min(_MOST_BYTES, free * _PART))):
        found["bad_memory"].append(str(place))
    digests, seconds = _products(place)
    found["digests"].append(digests)
    found["product_s"] = max(found["product_s"], seconds)


def _keeps_patterns(place: Any, size: int) -> bool:
    """Memory of the device holds what is written to it."""
    import torch

    if place.type != "cuda":
        size = min(size, _MOST_BYTES // 16)
    kept = torch.empty(size // 4, dtype=torch.int32, device=place)
    return all(bool((kept.fill_(pattern) == pattern).all().item()) for pattern in _PATTERNS)


def _products(place: Any) -> tuple[list[str], float]:
    """The digests of the results, each once, and the seconds of the slowest product."""
    import torch

    rows, columns = torch.arange(SIZE)[:, None], torch.arange(SIZE)[None, :]
    # As in `trainers.preflight.product`.
    left = ((rows * 7 + columns * 13 + rows * columns) % 5 - 2).to(place, torch.float32)
    right = ((rows * 11 + columns * 3 + (rows ^ columns)) % 5 - 2).to(place, torch.float32)
    digests: dict[str, None] = {}
    slowest = 0.0
    for number in range(_PRODUCTS):
        began = time.monotonic()
        result = (left @ right).to("cpu", torch.int32).contiguous()
        if number:  # the first one loads the library
            slowest = max(slowest, time.monotonic() - began)
        digests[digest_of(ctypes.string_at(result.data_ptr(), 4 * SIZE * SIZE))] = None
    return [*digests], slowest


if __name__ == "__main__":
    # It ends by itself where its parent has gone.
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[1]))
    print(json.dumps(measure()))
