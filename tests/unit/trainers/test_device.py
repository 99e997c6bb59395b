"""What a worker computes on: what the node has, what the job asks for, and what its command gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.spec.sections import Device, Precision
from trainers.backends.backend import BackendUnusable
from trainers.supervisor.device import Devices, device_variables, devices_of_node
from trainers.worker_identity import WorkerIdentity

IDENTITY = WorkerIdentity(
    job_id="job_1", attempt_id="att_1", attempt=1, generation=1, rank=5, world_size=8, local_rank=1,
    local_world_size=2, node_rank=2, num_nodes=4, master_addr="127.70.0.2", master_port=29500,
)  # fmt: skip

PLAIN = Devices(frozenset(), has_bf16=False)
MODERN = Devices(frozenset(), has_bf16=True)
NVIDIA = Devices(frozenset({"nvidia"}), has_bf16=False)
INTEL = Devices(frozenset({"intel"}), has_bf16=False)


def variables_for(device: Device, precision: Precision, gpus: float, seen: Devices) -> dict[str, str]:
    return device_variables(device, precision, gpus, seen, IDENTITY, "eth0")


@pytest.mark.parametrize(
    ("device", "gpus", "seen", "collectives"),
    [
        ("auto", 0, PLAIN, "gloo"),
        ("auto", 0, NVIDIA, "gloo"),
        ("auto", 1, NVIDIA, "nccl"),
        ("cuda", 1, NVIDIA, "nccl"),
        ("cpu", 0, NVIDIA, "gloo"),
        ("xpu", 1, INTEL, "xccl"),
    ],
)
def test_collectives_follow_the_device(device: Device, gpus: float, seen: Devices, collectives: str) -> None:
    assert variables_for(device, "full", gpus, seen)["REMORA_COLLECTIVES"] == collectives


def test_on_intel_gpus_oneccl_knows_each_place_without_mpirun() -> None:
    assert variables_for("xpu", "full", 1, INTEL) == {
        "REMORA_COLLECTIVES": "xccl",
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": "1",
        "CCL_LOCAL_SIZE": "2",
        "CCL_ATL_TRANSPORT": "ofi",
        "FI_TCP_IFACE": "eth0",
    }


def test_bf16_is_asked_of_onednn_only_when_the_job_says_so() -> None:
    assert variables_for("auto", "bf16", 0, MODERN)["ONEDNN_DEFAULT_FPMATH_MODE"] == "BF16"
    assert variables_for("auto", "full", 0, MODERN) == {"REMORA_COLLECTIVES": "gloo"}


@pytest.mark.parametrize(
    ("device", "precision", "seen", "said"),
    [
        ("xpu", "full", NVIDIA, "asks for an Intel GPU"),
        ("cuda", "full", INTEL, "asks for an NVIDIA GPU"),
        ("auto", "bf16", PLAIN, "has no AMX, without which oneDNN does not multiply so"),
    ],
)
def test_what_is_not_there_is_refused_in_one_sentence(
    device: Device, precision: Precision, seen: Devices, said: str
) -> None:
    with pytest.raises(BackendUnusable, match=said):
        variables_for(device, precision, 1, seen)


@pytest.mark.parametrize(
    ("vendor", "flags", "devices"),
    [
        ("0x8086", "fpu sse2 amx_bf16", Devices(frozenset({"intel"}), has_bf16=True)),
        ("0x10de", "fpu sse2 avx512f", Devices(frozenset({"nvidia"}), has_bf16=False)),
        ("0x1002", "fpu avx512_bf16", Devices(frozenset(), has_bf16=False)),
    ],
)
def test_a_node_is_read_from_what_linux_reports(
    tmp_path: Path, vendor: str, flags: str, devices: Devices
) -> None:
    card = tmp_path / "sys/class/drm/renderD128/device"
    card.mkdir(parents=True)
    (card / "vendor").write_text(f"{vendor}\n")
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text(f"processor\t: 0\nflags\t\t: {flags}\n")
    assert devices_of_node(tmp_path) == devices


def test_a_data_center_gpu_is_known_by_its_driver_and_silence_is_nothing(tmp_path: Path) -> None:
    assert devices_of_node(tmp_path) == PLAIN
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    assert devices_of_node(tmp_path) == NVIDIA
