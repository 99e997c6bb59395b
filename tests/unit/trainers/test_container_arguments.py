"""What podman is asked for: files under the same paths, the node's own network and memory, and a worker's GPUs."""

from __future__ import annotations

import csv
import itertools
from pathlib import Path

import pytest

from trainers.containers.arguments import (
    UNLIMITED,
    ContainerLimits,
    Mount,
    create_arguments,
    gpu_devices,
    visible_in_container,
)
from trainers.supervisor import preparation
from trainers.supervisor.child_environment import variables_in_container
from trainers.supervisor.device import Devices
from trainers.supervisor.preparation import NodeFolders, worker_devices, worker_mounts

IMAGE = "4" * 64


def words(*mounts: Mount, devices: tuple[str, ...] = (), limits: ContainerLimits | None = None) -> list[str]:
    limits = limits or ContainerLimits(files=1000, processes=UNLIMITED, most_pids=4_194_304)
    return create_arguments("remora-1", IMAGE, mounts, devices, Path("/hold"), limits)


def after(option: str, given: list[str]) -> list[str]:
    return [value for name, value in itertools.pairwise(given) if name == option]


def test_the_container_is_in_the_nodes_own_namespaces_and_nothing_is_fetched_for_it() -> None:
    given = words()
    assert given[0] == "create"
    assert {"--network=host", "--ipc=host", "--pid=host", "--uts=host"} < set(given)
    assert after("--pull", given) == ["never"]
    assert given[-1] == IMAGE, "an id, behind all options"


@pytest.mark.parametrize("name", ["/a,b", "/a:ro", '/a"b', "/a,target=/etc", "/a\nb"])
def test_a_path_is_one_mount_whatever_is_in_it(name: str) -> None:
    option = Mount(source=Path(name), target=Path(name), is_read_only=True).option()
    (fields,) = csv.reader([option], strict=True)
    assert fields == ["type=bind", f"source={name}", f"target={name}", "ro=true"]


def test_what_has_one_target_is_mounted_once_and_the_placeholder_is_there() -> None:
    given = after("--mount", words(*[Mount(source=Path("/a"), target=Path("/t"))] * 2))
    assert given == [
        '"type=bind","source=/a","target=/t"',
        '"type=bind","source=/hold","target=/hold","ro=true"',
    ]


def test_limits_are_no_higher_than_those_of_the_node() -> None:
    limits = ContainerLimits(files=UNLIMITED, processes=500, most_pids=32768)
    assert after("--ulimit", words(limits=limits)) == ["nofile=1048576:1048576", "nproc=500:500"]
    assert after("--ulimit", words()) == ["nofile=1000:1000", "nproc=4194304:4194304"]


@pytest.mark.parametrize(
    ("visible", "devices", "inside"),
    [
        ("2,3", ("nvidia.com/gpu=2", "nvidia.com/gpu=3"), "0,1"),
        ("GPU-8a-1", ("nvidia.com/gpu=GPU-8a-1",), "GPU-8a-1"),
        (" 5 ", ("nvidia.com/gpu=5",), "0"),
        ("1,-1,2", ("nvidia.com/gpu=1",), "0"),
        ("", (), ""),
        (None, (), ""),
        ("--privileged", (), ""),
    ],
)
def test_gpus_are_the_workers_own_and_counted_from_zero_inside(
    visible: str | None, devices: tuple[str, ...], inside: str
) -> None:
    assert gpu_devices(visible) == devices
    assert visible_in_container(visible) == inside


def test_only_gpus_that_the_node_has_are_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(preparation, "_INFINIBAND", tmp_path / "none")
    nvidia, none = Devices(frozenset({"nvidia"}), False), Devices(frozenset(), False)
    assert worker_devices(1.0, nvidia, "4") == ["nvidia.com/gpu=4"]
    assert worker_devices(0.0, nvidia, "") == []
    assert worker_devices(1.0, none, "0") == [], "a local node that only announces a GPU"
    monkeypatch.setattr(preparation, "_INFINIBAND", tmp_path)
    assert after("--device", words(devices=tuple(worker_devices(1.0, nvidia, "4")))) == [
        str(tmp_path),
        "nvidia.com/gpu=4",
    ]


def test_a_worker_sees_its_folders_under_their_own_paths_and_what_it_reads_is_read_only(
    tmp_path: Path,
) -> None:
    group, temporary, real = tmp_path / "group", tmp_path / "link", tmp_path / "real"
    for folder in (group, real):
        folder.mkdir()
    temporary.symlink_to(real)
    folders = NodeFolders(
        group=group, code=group / "code", temporary=temporary, resume=tmp_path / "storage/checkpoint"
    )
    mounts = worker_mounts(folders, {"data": Path("/data"), "own": group / "input"})
    written = {(one.source, one.target) for one in mounts if not one.is_read_only}
    assert written == {(group, group), (real, temporary)}
    read = {str(one.target) for one in mounts if one.is_read_only}
    assert {"/data", f"{tmp_path}/storage/checkpoint"} < read
    assert str(group / "input") not in read, "it is there with its folder"
    assert (group / "remora-public/remora/training.py").is_file()


def test_variables_of_the_node_stay_outside_but_for_the_workers_gpus_and_the_marks_of_its_machine() -> None:
    node = {"LD_LIBRARY_PATH": "/opt", "PATH": "/node", "REMORA_NODE_ID": "n", "CUDA_VISIBLE_DEVICES": "6,7"}
    assert variables_in_container(node, {"PATH": "/image"}) == {
        "HOME": "/root",
        "PATH": "/image",
        "REMORA_NODE_ID": "n",
        "CUDA_VISIBLE_DEVICES": "0,1",
    }
    assert "CUDA_VISIBLE_DEVICES" not in variables_in_container({}, {})


def test_a_container_counts_its_gpus_as_the_node_does() -> None:
    """A worker that joins may see its own GPU before those of lower numbers."""
    assert [visible_in_container(one) for one in ("7,1", "10,9,2", "GPU-b,3", "")] == [
        "1,0",
        "2,1,0",
        "GPU-b,0",
        "",
    ]
