"""Workers whose processors compute other bits are refused in `bitwise` mode, with what they differ in."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch

from remora.free_ports import free_port
from remora.torch.hardware import decode, difference, encode, hardware, parse_processor
from remora.torch.members import Membership
from remora.torch.sharded.process_groups import ProcessGroups

SCRIPT = """
import sys
import torch
from torch import nn
from remora.torch import Loop

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters())
data = torch.randn(64, 64)
try:
    for step in Loop(model, optimizer, data=data, global_batch=16, shards=4, total_steps=4, exactness=sys.argv[1]):
        step.backward(lambda model, batch: model(batch).square().mean())
        optimizer.step()
except ValueError as error:
    print(error)
else:
    print("trained")
"""


def train_on_two(exactness: str, **of_rank_1: str) -> list[str]:
    port = str(free_port())
    both = []
    for rank in range(2):
        environment = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
            "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", **(of_rank_1 if rank else {}),
        }  # fmt: skip
        both.append(
            subprocess.Popen(
                [sys.executable, "-c", SCRIPT, exactness], stdout=subprocess.PIPE, text=True, env=environment
            )
        )
    return [one.communicate(timeout=240)[0].strip() for one in both]


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="this processor has no other capability"
)
def test_workers_with_other_instructions_are_refused_and_allowed_without_bitwise() -> None:
    said = train_on_two("bitwise", ATEN_CPU_CAPABILITY="default")
    for one in said:
        assert one.startswith(
            "exactness is bitwise, and rank 1 differs from rank 0 in CPU capability (DEFAULT, and"
        )
    assert train_on_two("sample-exact", ATEN_CPU_CAPABILITY="default") == ["trained", "trained"]


def test_what_travels_is_what_is_read() -> None:
    own = hardware(torch.device("cpu"))
    assert decode(encode(own).tolist()) == own
    assert own["oneDNN"] != "none"
    assert decode([0] * 8) == {}


def test_processors_are_distinguished_by_maker_and_instructions() -> None:
    text = "vendor_id\t: GenuineIntel\nmodel name\t: X\nflags\t\t: fpu avx2 fma avx512f amx_tile\n\nvendor_id : other\n"
    assert parse_processor(text) == "GenuineIntel amx_tile avx2 avx512f fma"
    arm = "processor\t: 0\nFeatures\t: fp asimd sve aes\nCPU implementer\t: 0x41\n"
    assert parse_processor(arm) == "0x41 asimd sve"
    assert parse_processor("") == "unknown"


def test_a_difference_names_the_rank_and_only_what_differs() -> None:
    first = {"processor": "GenuineIntel avx2 avx512f fma", "PyTorch": "2.13"}
    assert difference([first, first, {**first, "processor": "AuthenticAMD avx2 fma"}]) == (
        "rank 2 differs from rank 0 in processor (AuthenticAMD, and GenuineIntel avx512f on rank 0)"
    )


@pytest.mark.parametrize(
    "choose",
    [
        lambda device: Membership(None, 1, None, None, device),
        lambda device: ProcessGroups(None, device, lambda: 0, lambda: -1),
    ],
    ids=["copies", "shards"],
)
def test_gpus_of_amd_are_refused_where_no_preflight_refused_their_node(
    choose: Callable[[torch.device], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.4.1")
    said = r"^this PyTorch is built for GPUs of AMD \(ROCm 6.4.1\), on which Remora does not train: .* processors$"
    with pytest.raises(RuntimeError, match=said):
        choose(torch.device("cuda", 0))
    choose(torch.device("cpu"))
    monkeypatch.setattr(torch.version, "hip", None)
    choose(torch.device("cuda", 0))
