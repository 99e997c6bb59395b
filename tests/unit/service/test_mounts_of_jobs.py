"""A job that mounts an input is refused at once where the nodes cannot mount, in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.spec.spec import JobSpec
from service import mounts
from service.mounts import NoMounts, check_mounts
from service.settings import Settings
from trainers.inputs.mounts import mountable

IN_AZURE = "abfs://data@account.dfs.core.windows.net"


def job(store: str, mode: str) -> JobSpec:
    return JobSpec.from_mapping(
        {"command": "true", "inputs": {"data": {"store": store, "path": "images", "mode": mode}}}
    )


@pytest.fixture
def lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mountable, "_DEVICE", Path("/nowhere/fuse"))


def settings(tmp_path: Path, cloud: str = "local") -> Settings:
    return Settings(
        home=tmp_path, cloud=cloud, stores={"cloud": IN_AZURE, "disk": str(tmp_path), "other": "memory://x"}
    )


@pytest.mark.usefixtures("lacks")
@pytest.mark.parametrize("store", ["cloud", "other"])
@pytest.mark.parametrize("cloud", ["local", "azure-emulated"])
def test_nodes_that_are_processes_here_mount_what_this_machine_mounts(
    tmp_path: Path, store: str, cloud: str
) -> None:
    with pytest.raises(
        NoMounts, match=r"^the nodes of this cluster cannot mount an input, as /nowhere/fuse"
    ) as refused:
        check_mounts(settings(tmp_path, cloud), job(store, "mount"))
    assert refused.value.field == "inputs.data.mode"
    assert "\n" not in str(refused.value)
    assert "mode: download" in str(refused.value)


@pytest.mark.usefixtures("lacks")
def test_copies_folders_of_the_nodes_and_machines_of_azure_need_nothing_here(tmp_path: Path) -> None:
    check_mounts(settings(tmp_path), job("cloud", "download"))
    check_mounts(settings(tmp_path), job("disk", "mount"))
    check_mounts(settings(tmp_path, "azure"), job("cloud", "mount"))


def test_what_a_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    device = tmp_path / "fuse"
    device.touch()
    monkeypatch.setattr(mountable, "_DEVICE", device)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert mounts.why_no_mounts() == "there is no fusermount3"
    device.unlink()
    assert "cannot be opened (No such file or directory)" in str(mounts.why_no_mounts())


@pytest.mark.parametrize(
    ("said", "allows"),
    [("user_allow_other\n", True), ("# user_allow_other\n", False), ("", False), (None, False)],
)
def test_other_users_read_a_mount_where_the_machine_allows_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str | None, allows: bool
) -> None:
    monkeypatch.setattr(mountable.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(mountable, "_CONFIGURATION", tmp_path / "fuse.conf")
    if said is not None:
        (tmp_path / "fuse.conf").write_text(said)
    assert mountable.may_allow_others() is allows
