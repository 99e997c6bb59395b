"""What `remora-server` does on a machine of the Ray cluster that has no installation of the service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.local.folders import ClusterFolders
from service.installation.__main__ import main


def test_it_runs_a_node_for_drivers(tmp_path: Path) -> None:
    """By the command of the release, whose packages have no names of their own there."""
    command = str(Path(sys.executable).with_name("remora-server"))
    below_a_file = tmp_path / "file" / "home"
    below_a_file.parent.touch()
    words = ["--home", str(below_a_file), "--head", "10.0.0.4:6379", "--address", "10.0.0.5"]
    refused = subprocess.run(
        [command, "drivers", *words],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert (refused.returncode, refused.stderr[:43]) == (2, "the folders of the cluster cannot be made: ")


def test_it_makes_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home, before = tmp_path / "home", os.umask(0o077)
    try:
        with pytest.raises(SystemExit) as ended:
            main(["certificates", str(home), "127.0.0.1"])
    finally:
        os.umask(before)
    assert ended.value.code == 0
    assert f"export RAY_TLS_CA_CERT={home}" in capsys.readouterr().out
    assert ClusterFolders(home).authority.is_file()
