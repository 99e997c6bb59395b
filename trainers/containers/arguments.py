"""What podman is asked for, for the container of a worker (pure).

The container has the network, the memory for IPC and the process ids of its node, so that a rendezvous, shared memory
and signals are as without one; folders have the same paths in it as on the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

#: Label of all containers that are made here.
LABEL = "remora.worker"
#: Of a limit that is not set, as Linux writes it.
UNLIMITED = -1
#: Kind of the devices that NVIDIA's toolkit describes in /etc/cdi or /var/run/cdi.
_NVIDIA = "nvidia.com/gpu"


@dataclass(frozen=True, kw_only=True)
class Mount:
    """A folder or file of the node that the command sees."""

    source: Path
    #: Its path in the container.
    target: Path
    is_read_only: bool = False

    def option(self) -> str:
        """As podman reads it: one line of CSV, so that a path may have commas and colons."""
        fields = ["type=bind", f"source={self.source}", f"target={self.target}"]
        fields += ["ro=true"] if self.is_read_only else []
        return ",".join('"{}"'.format(one.replace('"', '""')) for one in fields)


@dataclass(frozen=True, kw_only=True)
class ContainerLimits:
    """What the node's own processes may have at most, of which a container may have no more."""

    files: int
    processes: int
    #: The greatest process id of the node.
    most_pids: int


def create_arguments(
    name: str,
    image: str,
    mounts: Iterable[Mount],
    devices: Sequence[str],
    placeholder: Path,
    limits: ContainerLimits,
) -> list[str]:
    """Words for podman that make a container of this name without starting anything in it.

    `image` is an id; `placeholder` is an executable file of the node: a container has to have a command, and this
    one is never started.
    """
    words = ["create", "--name", name, "--label", LABEL, "--pull", "never", "--log-driver", "none"]
    # All that the node's own processes have.
    words += [f"--{kind}=host" for kind in ("network", "ipc", "pid", "uts", "cgroupns")]
    # The supervisor's processes stay in the cgroup that ends with it.
    words += ["--cgroups", "no-conmon", "--security-opt", "label=disable", "--user", "0:0", "--workdir", "/"]
    words += ["--ulimit", f"nofile={_pair(limits.files, 1 << 20)}"]
    words += ["--ulimit", f"nproc={_pair(limits.processes, limits.most_pids)}"]
    own = Mount(source=placeholder, target=placeholder, is_read_only=True)
    by_target = {mount.target: mount for mount in (*mounts, own)}
    for mount in by_target.values():
        words += ["--mount", mount.option()]
    for device in devices:
        words += ["--device", device]
    return [*words, "--entrypoint", f'["{placeholder}"]', image]


def _pair(limit: int, most: int) -> str:
    """The same soft and hard limit; without the right to raise one, a container's has to be below its parent's."""
    least = most if limit == UNLIMITED else min(limit, most)
    return f"{least}:{least}"


def gpu_devices(visible: str | None) -> tuple[str, ...]:
    """Names of the GPUs of a worker for CDI; `visible` is the node's CUDA_VISIBLE_DEVICES for it.

    Empty where it has none; an entry is an index, or the UUID of a GPU or of a part of one.
    """
    return tuple(f"{_NVIDIA}={one}" for one in _entries(visible))


def visible_in_container(visible: str | None) -> str:
    """CUDA_VISIBLE_DEVICES in a container that has only these GPUs: there they are counted from 0, and UUIDs stay.

    They are counted as on the node, whatever the order in which this worker sees them.
    """
    entries = _entries(visible)
    counted = sorted((one for one in entries if one.isdecimal()), key=int)
    return ",".join(str(counted.index(one)) if one.isdecimal() else one for one in entries)


def _entries(visible: str | None) -> list[str]:
    found: list[str] = []
    for part in (visible or "").split(","):
        one = part.strip()
        # As CUDA reads it: what follows an invalid entry is not visible.
        if not one or not one.replace("-", "").replace("/", "").isalnum() or one.startswith("-"):
            break
        found.append(one)
    return found
