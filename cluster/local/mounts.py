"""Ends what is still mounted below the folder of a machine whose processes have ended."""

from __future__ import annotations

import logging
import re
import subprocess
from pathlib import Path

log = logging.getLogger(__name__)

_MOUNTS = Path("/proc/self/mounts")
#: As the kernel writes a character that would end a word there.
_ESCAPED = re.compile(r"\\([0-7]{3})")


def mounted_below(folder: Path, listed: str) -> list[Path]:
    """Mounts of FUSE below a folder, the deepest first, from what the kernel lists (pure)."""
    found = []
    for line in listed.splitlines():
        words = line.split(" ")
        if len(words) > 2 and words[2].partition(".")[0] == "fuse":
            path = Path(_ESCAPED.sub(lambda octal: chr(int(octal.group(1), 8)), words[1]))
            if path.is_relative_to(folder):
                found.append(path)
    return sorted(found, key=lambda path: len(path.parts), reverse=True)


def unmount_below(folder: Path) -> None:
    """End all mounts of FUSE below a folder; their processes may be dead.  What cannot be ended is logged."""
    listed = _MOUNTS.read_text(errors="surrogateescape")
    for path in mounted_below(folder, listed):
        try:
            done = subprocess.run(
                ["fusermount3", "-u", "-z", "--", str(path)], capture_output=True, text=True, check=False
            )
        except OSError as error:
            log.warning("%s stays mounted: %s", path, error)
        else:
            if done.returncode != 0:
                log.warning("%s stays mounted: %s", path, done.stderr.strip())
