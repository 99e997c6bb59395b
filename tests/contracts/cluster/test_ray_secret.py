"""The secret of a running Ray cluster stays what it was at its start, whatever becomes of its file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cluster.local.environment import process_environment
from cluster.local.folders import ClusterFolders
from cluster.local.head import start_head, stop_head, wait_until_reachable

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

#: Asks a head with the secret of its environment; prints what came of it.
ASK = """
import sys
from ray._raylet import GcsClient
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", b"remora", timeout=10)
    print("answered")
except Exception as error:
    print("refused", error)
"""


def asked(home: Path, address: str, token: str) -> str:
    environment = process_environment(home, RAY_AUTH_TOKEN=token)
    environment.pop("RAY_AUTH_TOKEN_PATH")
    words = [sys.executable, "-P", "-c", ASK, address]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=90)
    return (done.stdout.strip() or f"refused {done.stderr[-500:]}").split()[0]


def test_a_head_that_runs_goes_on_with_the_secret_of_its_start(tmp_path: Path) -> None:
    home, token = tmp_path / "home", ClusterFolders(tmp_path / "home").token
    try:
        head = start_head(home)
        wait_until_reachable(home, head)
        old, new = token.read_text(), "f" * 64
        assert asked(home, head.ray_address, old) == "answered"
        token.write_text(new)
        assert asked(home, head.ray_address, new) == "refused"
        assert asked(home, head.ray_address, old) == "answered"
    finally:
        stop_head(home, grace_s=0)
        ClusterFolders(home).remove_temporary()
