"""What a machine needs to mount an input, and how a mount is ended."""

from __future__ import annotations

import ctypes.util
import os
import re
import shutil
import subprocess
from pathlib import Path

#: How `/proc/self/mounts` names our mounts.
KIND = "fuse.remora"
_DEVICE, _CONFIGURATION = Path("/dev/fuse"), Path("/etc/fuse.conf")


def why_no_mounts() -> str | None:
    """What this machine lacks to mount an input, None when it can."""
    try:
        os.close(os.open(_DEVICE, os.O_RDWR | os.O_CLOEXEC))
    except OSError as error:
        return f"{_DEVICE} cannot be opened ({error.strerror})"
    if shutil.which("fusermount3") is None:
        return "there is no fusermount3"
    if ctypes.util.find_library("fuse3") is None:
        return "there is no libfuse3"
    return None


def may_allow_others() -> bool:
    """True when other users may read what this one mounts, as scripts do that run as a user of their own."""
    if os.geteuid() == 0:
        return True
    try:
        said = _CONFIGURATION.read_text(errors="replace")
    except OSError:
        return False
    return re.search(r"^\s*user_allow_other\s*$", said, re.MULTILINE) is not None


def is_mounted(folder: Path) -> bool:
    """True when one of our mounts, living or dead, is at this folder."""
    named = (
        str(folder).replace("\\", r"\134").replace(" ", r"\040").replace("\t", r"\011").replace("\n", r"\012")
    )
    lines = Path("/proc/self/mounts").read_text(errors="replace").splitlines()
    return any(line.split(" ")[1:3] == [named, KIND] for line in lines)


def unmount(folder: Path) -> None:
    """End the mount at a folder, also one that is used or whose process is dead; fine when there is none."""
    command = ["fusermount3", "-u", "-z", "--", str(folder)]
    while is_mounted(folder):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            return
