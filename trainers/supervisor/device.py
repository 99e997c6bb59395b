"""Checks the node's devices against what the job asks for, and sets the command's variables for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from remora.spec.sections import Device, Precision
from trainers.backends.backend import BackendUnusable
from trainers.worker_identity import WorkerIdentity

#: https://pcisig.com/membership/member-companies names the vendors.
_VENDORS = {"0x10de": "nvidia", "0x8086": "intel"}
#: Processors on which oneDNN rounds the factors of a product to bfloat16, by the flags of Linux.  On those that have
#: AVX512_BF16 alone it takes that as leave and multiplies as exactly as before (measured with oneDNN 3.12).
_BF16_FLAGS = frozenset({"amx_bf16", "bf16"})


@dataclass(frozen=True)
class Devices:
    """What a node has."""

    #: Vendors of its GPUs.
    gpu_vendors: frozenset[str]
    #: oneDNN multiplies in bfloat16 on its processor when it is allowed to.
    has_bf16: bool


def devices_of_node(root: Path = Path("/")) -> Devices:
    """The devices of this machine according to Linux; none where /sys and /proc have no entries."""
    vendors = {
        vendor
        for file in root.glob("sys/class/drm/renderD*/device/vendor")
        if (vendor := _VENDORS.get(_text(file).strip()))
    }
    # NVIDIA's driver for data centers has no render nodes.
    if any(root.glob("dev/nvidia[0-9]*")):
        vendors.add("nvidia")
    flags = {
        word
        for line in _text(root / "proc/cpuinfo").splitlines()
        if line.lower().startswith(("flags", "features"))
        for word in line.split()
    }
    return Devices(frozenset(vendors), bool(flags & _BF16_FLAGS))


def device_variables(
    device: Device,
    precision: Precision,
    gpus: float,
    seen: Devices,
    identity: WorkerIdentity,
    interface: str | None,
) -> dict[str, str]:
    """Environment variables for the command; raises BackendUnusable when the node lacks what the job asks for.

    Sources: oneDNN's page on the floating-point math mode, oneCCL's on launching without MPI, and for the names of
    torch's backends https://docs.pytorch.org/docs/stable/distributed.html#backends.
    """
    if device == "xpu" and "intel" not in seen.gpu_vendors:
        raise BackendUnusable(
            "the job asks for an Intel GPU (resources.device: xpu) and this node has none: "
            "let it run on nodes that have one, or write device: auto"
        )
    if device == "cuda" and "nvidia" not in seen.gpu_vendors:
        raise BackendUnusable(
            "the job asks for an NVIDIA GPU (resources.device: cuda) and this node has none: "
            "let it run on nodes that have one, or write device: auto"
        )
    if precision == "bf16" and not seen.has_bf16:
        raise BackendUnusable(
            "the job asks for bfloat16 on CPUs (resources.precision: bf16) and this node's processor has no "
            "AMX, without which oneDNN does not multiply so: let it run on newer processors, or write precision: full"
        )
    has_gpu = gpus > 0 and device != "cpu"
    if device == "xpu":
        return {"REMORA_COLLECTIVES": "xccl", **_oneccl(identity, interface)}
    variables = {
        "REMORA_COLLECTIVES": "nccl" if has_gpu and "nvidia" in seen.gpu_vendors else "gloo",
    }
    if precision == "bf16":
        variables["ONEDNN_DEFAULT_FPMATH_MODE"] = "BF16"
        variables["REMORA_PRECISION"] = "bf16"
    return variables


def _oneccl(identity: WorkerIdentity, interface: str | None) -> dict[str, str]:
    """Without mpirun oneCCL needs the local ranks of a node from variables, and has to use sockets."""
    variables = {
        "CCL_PROCESS_LAUNCHER": "none",
        "CCL_LOCAL_RANK": str(identity.local_rank),
        "CCL_LOCAL_SIZE": str(identity.local_world_size),
        "CCL_ATL_TRANSPORT": "ofi",
    }
    return variables if interface is None else {**variables, "FI_TCP_IFACE": interface}


def _text(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""
