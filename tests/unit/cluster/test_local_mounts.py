"""What is mounted below a machine's folder is found in the kernel's list, and ended with the machine."""

from __future__ import annotations

from pathlib import Path

from cluster.local.mounts import mounted_below, unmount_below

LISTED = r"""
/dev/root / ext4 rw 0 0
remora /tmp/remora-0/node/made/mounts/a/tree fuse.remora ro 0 0
remora /tmp/remora-0/node/made/mounts/a/tree/b fuse.remora ro 0 0
remora /tmp/remora-0/node/with\040space fuse ro 0 0
remora /tmp/remora-0/node-2/made/mounts/a/tree fuse.remora ro 0 0
tmpfs /tmp/remora-0/node/shm tmpfs rw 0 0
fusectl /sys/fs/fuse/connections fusectl rw 0 0
"""


def test_mounts_of_fuse_below_a_folder_are_found_the_deepest_first() -> None:
    folder = Path("/tmp/remora-0/node")
    assert mounted_below(folder, LISTED) == [
        folder / "made/mounts/a/tree/b",
        folder / "made/mounts/a/tree",
        folder / "with space",
    ]


def test_a_folder_without_mounts_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    unmount_below(tmp_path)
    assert (tmp_path / "file").exists()
