"""The processor time of a cluster's own global control store."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cluster.local.environment import MACHINE_VARIABLE
from cluster.local.folders import ClusterFolders
from cluster.local.gcs import GcsUse

#: Burns a core until its input ends.
_BUSY = """
import sys, threading
threading.Thread(target=lambda: exec("while 1: pass"), daemon=True).start()
sys.stdin.read()
"""


def start(folder: Path, home: Path) -> subprocess.Popen[bytes]:
    """A busy process that looks like the store of this home."""
    folders = ClusterFolders(home)
    named = folder / "gcs_server"
    named.write_text(f"#!{os.path.realpath('/proc/self/exe')}\n{_BUSY}\n")
    named.chmod(0o755)
    environment = {MACHINE_VARIABLE: folders.mark_of(folders.head_id)}
    return subprocess.Popen([named], env=environment, stdin=subprocess.PIPE)


def test_only_the_store_of_this_home_is_counted(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    with start(tmp_path, own) as busy:
        try:
            use = GcsUse(own)
            while use.share() == 0:  # the kernel counts in hundredths of a second
                pass
            assert use.share() > 0
            with pytest.raises(LookupError, match="start its head first"):
                GcsUse(other)
        finally:
            busy.kill()
