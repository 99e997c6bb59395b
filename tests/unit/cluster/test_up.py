"""`up` and `down` refuse what cannot work with one sentence and touch nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local import joined
from cluster.local.folders import ClusterFolders
from cluster.provider import ProviderError
from service.embedded.home_lock import HomeLock, HomeTaken
from service.up import main

HOLDER = """
import pathlib, signal, sys
from service.embedded.home_lock import HomeLock
with HomeLock(pathlib.Path(sys.argv[1])):
    print("held", flush=True)
    signal.pause()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that owns `tmp_path` as its home."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def error_of(capsys: pytest.CaptureFixture[str], *words: str, code: int = 1) -> str:
    assert main(words) == code
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert said.count("\n") == 1, said
    return said


def test_a_home_has_one_owner(
    tmp_path: Path, holder: subprocess.Popen[str], capsys: pytest.CaptureFixture[str]
) -> None:
    said = error_of(capsys, "--home", str(tmp_path))
    assert f"process {holder.pid}" in said
    assert "remora down" in said


def test_the_lock_of_the_dead_is_free(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    with pytest.raises(HomeTaken), HomeLock(tmp_path):
        pass
    holder.kill()
    holder.wait()
    with HomeLock(tmp_path):
        pass


def test_down_ends_the_owner(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    assert main(["--down", "--home", str(tmp_path)]) == 0
    assert holder.wait(10) == -signal.SIGTERM


def test_down_where_nothing_runs_is_fine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--down", "--home", str(tmp_path)]) == 0
    assert "Nothing is left running" in capsys.readouterr().out
    missing = tmp_path / "never"
    assert main(["--down", "--home", str(missing)]) == 0
    assert "Nothing to end" in capsys.readouterr().out
    assert not missing.exists()


def test_a_taken_port_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        said = error_of(capsys, "--home", str(tmp_path), "--port", str(port))
    assert str(port) in said
    assert "--port" in said


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--port", "abc"], "port"),
        (["--port", "70000"], "port"),
        (["--nodes", "-1"], "nodes"),
        (["--node-cpus", "0"], "node_cpus"),
        (["--cloud", "mars"], "cloud"),
        (["--nodes", "[red]x[/red]"], "[red]x[/red]"),
    ],
)
def test_impossible_values_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], named: str
) -> None:
    assert named in error_of(capsys, "--home", str(tmp_path), *words, code=2)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cluster", "Ward"], "lowercase letters"),
        (["--cluster", "../ward"], "lowercase letters"),
        (["--cluster", "a" * 33], "32 characters"),
        (["--cluster", ""], "lowercase letters"),
        ([word for number in range(9) for word in ("--cluster", f"c{number}")], "8 are possible"),
        (["--cluster", "ward", "--cloud", "azure-emulated"], "docs/clusters.md"),
    ],
)
def test_clusters_that_cannot_be_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert said in error_of(capsys, "--home", str(tmp_path), *words, code=2)
    assert list(tmp_path.iterdir()) == []


def test_a_head_that_machines_of_azure_cannot_join_is_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = error_of(capsys, "--home", str(tmp_path), "--cloud", "azure")
    assert "docs/azure.md" in said
    assert not (tmp_path / "head.json").exists()


def test_a_home_that_is_a_file_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert "file" in error_of(capsys, "--home", str(file))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--ray-address", "ray://10.0.0.4:10001"], "Ray Client"),
        (["--ray-address", "10.0.0.4"], "HOST:PORT"),
        (["--cloud", "existing"], "--ray-address HOST:PORT"),
        (["--ray-address", "127.0.0.1:1"], "no Ray head answers at 127.0.0.1:1"),
    ],
)
def test_a_cluster_that_cannot_be_joined_is_reported_and_nothing_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    if "no Ray head" in said:
        pytest.importorskip("ray", reason="Ray is what looks for a head")
    assert said in error_of(capsys, "--home", str(tmp_path / "home"), "--port", "0", *words)
    assert not (tmp_path / "home/joined.json").exists()
    assert not (tmp_path / "home/head.json").exists()


def test_two_ways_to_a_cluster_are_one_too_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--home", str(tmp_path / "home"), "--cloud", "local", "--ray-address", "10.0.0.4:6379"]
    assert "give one" in error_of(capsys, *words, code=2)


def test_a_home_that_is_part_of_another_cluster_does_not_start_one_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = ClusterFolders(tmp_path / "home")
    joined.write(folders, "10.0.0.4:6379", {}, tmp_path)
    said = error_of(capsys, "--home", str(folders.home), "--port", "0")
    assert "part of the Ray cluster at 10.0.0.4:6379" in said
    assert "remora down" in said


def test_tokens_are_refused_on_a_cluster_whose_programs_run_code_as_the_user_of_the_service(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMORA_AUTHENTICATION", "required")
    home = tmp_path / "home"
    said = error_of(capsys, "--home", str(home), "--port", "0", "--ray-address", "10.0.0.4:6379")
    assert "keeps no one apart on an existing Ray cluster" in said
    assert not (home / "joined.json").exists()


NOWHERE = "127.0.0.1:1"


def part_of(tmp_path: Path, address: str = NOWHERE) -> ClusterFolders:
    folders = ClusterFolders(tmp_path / "home")
    joined.write(folders, address, {}, tmp_path)
    return folders


def refuse(*_: object) -> None:
    raise ProviderError("the head does not answer")


def test_where_to_clean_up_stays_known_until_nothing_remains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = part_of(tmp_path)
    monkeypatch.setattr("service.embedded.existing_cluster.start_member", refuse)
    assert main(["--down", "--home", str(folders.home)]) == 0
    said = capsys.readouterr().out
    assert f"repeat `remora down --ray-address {NOWHERE}`" in said
    assert str(folders.joined) in said, "what to do when that cluster is gone for good"
    known = joined.read(folders)
    assert known is not None
    assert known.address == NOWHERE


def test_an_address_that_was_tried_for_the_first_time_is_forgotten(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.embedded.existing_cluster.start_member", refuse)
    assert main(["--down", "--home", str(tmp_path / "home"), "--ray-address", NOWHERE]) == 0
    assert "may still have actors" in capsys.readouterr().out
    assert not (tmp_path / "home/joined.json").exists()


def test_joining_in_vain_forgets_only_what_it_wrote(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray", reason="Ray is what looks for a head")
    folders = part_of(tmp_path)
    said = error_of(capsys, "--home", str(folders.home), "--port", "0", "--ray-address", NOWHERE)
    assert "no Ray head answers" in said
    assert folders.joined.exists()


@pytest.mark.parametrize("words", [[], ["--down"]])
def test_a_home_is_part_of_one_cluster_until_it_has_left_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    folders = part_of(tmp_path, "10.0.0.4:6379")
    said = error_of(capsys, *words, "--home", str(folders.home), "--port", "0", "--ray-address", NOWHERE)
    assert "leave that with `remora down --ray-address 10.0.0.4:6379`" in said
    known = joined.read(folders)
    assert known is not None
    assert known.address == "10.0.0.4:6379"


def test_the_job_api_of_a_cluster_that_exists_is_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMORA_RAY_JOBS_PORT", "8265")
    said = error_of(capsys, "--home", str(tmp_path), "--ray-address", "127.0.0.1:1", code=2)
    assert "REMORA_RAY_JOBS_PORT is of heads that Remora starts" in said
