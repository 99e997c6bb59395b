"""The backends of `torch.distributed` below a worker group, and the store in which its workers find each other."""

from __future__ import annotations

import datetime
import os
import socket
import time
from typing import Any

import torch
import torch.distributed as dist

from remora.script.link import Rendezvous
from remora.torch.communicators import Forming, make_communicators

#: Time after which a collective fails by itself, as in `torch.distributed`.
COLLECTIVE_TIMEOUT = datetime.timedelta(seconds=1800)
#: Seconds for which a worker looks whether rank 0 serves the store; between two looks at first, and at most: a thousand
#: workers may look.
_LOOKS_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.1


def rendezvous_store(place: Rendezvous) -> Any:
    """The store of a rendezvous, with keys of its generation alone."""
    # torchrun's agent, or the user's own `init_process_group`, may serve the store already.
    is_served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" or dist.is_initialized()
    is_master = place.rank == 0 and not is_served
    if not is_master:
        _await_listener(place.master_addr, place.master_port)
    store = dist.TCPStore(
        place.master_addr,
        place.master_port,
        is_master=is_master,
        wait_for_workers=False,
        timeout=COLLECTIVE_TIMEOUT,
    )
    # torchrun keeps its store over restarts.  Remora's generations distinguish groups by themselves, and not all who
    # meet in one were started in the same.
    restarts = "0" if "REMORA_GENERATION" in os.environ else os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"remora/{place.generation}/{restarts}", store)


def _await_listener(address: str, port: int) -> None:
    """Return when something listens there, or when only the store itself can find out why nothing does.

    A client of the store that comes some milliseconds before rank 0 serves it tries again after 0.3 to 0.7 s (PyTorch
    2.13), for which all workers of the group would wait.
    """
    until, pause_s = time.monotonic() + _LOOKS_S, _FIRST_PAUSE_S
    while time.monotonic() < until:
        try:
            socket.create_connection((address, port), timeout=1.0).close()
        except ConnectionRefusedError:
            # No event of another machine says that it listens.
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        except OSError:
            return
        else:
            return


def process_group(
    store: Any, place: Rendezvous, device: torch.device | None, on_cuda: bool, forming: Forming
) -> Any:
    """Connect this worker with the others: with NCCL on GPUs, of which `device` is its own, and with gloo otherwise."""
    if not on_cuda:
        return dist.ProcessGroupGloo(store, place.rank, place.world_size, COLLECTIVE_TIMEOUT)
    if device is None:
        device = torch.device("cuda", torch.cuda.current_device())
    return make_communicators(store, place, device, COLLECTIVE_TIMEOUT, forming)
