"""Measures how fast this machine and one other add up a buffer together, and prints MB per second.

python -m trainers.preflight.link LIMIT_S RANK ADDRESS PORT BACKEND

The figure is the bandwidth of the bus as NCCL's tests define it
(https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md): for two ranks the bytes of the buffer per second.
"""

from __future__ import annotations

import signal
import sys
import time
from datetime import timedelta

#: Bytes of the buffer, and how many times it is added up: first to set up the connections, then measured.
_BYTES, _WARM, _TIMES = 32 * 2**20, 2, 5


def measure(rank: int, address: str, port: int, backend: str, limit_s: float) -> float:
    """MB (10^6 bytes) per second.  Raises what PyTorch raises."""
    import torch
    from torch import distributed

    place = torch.device("cuda", 0) if backend == "nccl" else torch.device("cpu")
    if place.type == "cuda":
        torch.cuda.set_device(place)
    limit = timedelta(seconds=limit_s)
    distributed.init_process_group(
        backend, init_method=f"tcp://{address}:{port}", rank=rank, world_size=2, timeout=limit
    )
    buffer = torch.zeros(_BYTES // 4, device=place)
    took: list[float] = []
    for _ in range(_WARM + _TIMES):
        began = time.monotonic()
        distributed.all_reduce(buffer)
        if place.type == "cuda":
            torch.cuda.synchronize(place)
        took.append(time.monotonic() - began)
    distributed.destroy_process_group()
    return _BYTES / 1e6 / sorted(took[_WARM:])[_TIMES // 2]


if __name__ == "__main__":
    _limit_s, _rank, _address, _port, _backend = sys.argv[1:6]
    signal.setitimer(signal.ITIMER_REAL, float(_limit_s))
    print(f"{measure(int(_rank), _address, int(_port), _backend, float(_limit_s)):.1f}")
