"""A checkpoint for another number of workers is converted in a process of its own, from the start of the script on."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import remora
from remora.deepspeed import conversion_process
from remora.deepspeed.conversion_process import begin_ahead, converted, folder_of, processes_for
from remora.deepspeed.record import Record, write
from remora.deepspeed.refusal import Refused

SITE = Path(remora.__file__).parent / "deepspeed" / "site"

#: In place of DeepSpeed's converter, whose import takes seconds: writes down each call, and does what CONVERTER says.
CONVERTER = """
import json, os, signal
from pathlib import Path

def main(args):
    calls = Path(os.environ["CALLS"])
    names = ("REMORA_CHANNEL_FD", "PYTHONPATH", "OMP_NUM_THREADS")
    call = {"workers": args.num_extract_workers, "merging": args.num_merge_workers}
    call.update({name: os.environ.get(name) for name in names})
    with calls.open("a") as file:
        file.write(json.dumps(call) + "\\n")
    how = os.environ.get("CONVERTER", "")
    if how == "dies" or how == "dies once" and args.num_extract_workers > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "refuses together" and args.num_extract_workers > 1:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
    if how == "refuses":
        raise ZeroDivisionError("division by zero\\nin a layer")
    if how == "waits":
        with open(os.environ["PIPE"]) as pipe:
            pipe.read()
    target = Path(args.output_folder)
    target.mkdir()
    (target / "made of").write_text(args.input_folder)
"""

#: What a script does with it, in the end.
SCRIPT = """
import os
from pathlib import Path
from remora import training
from remora.deepspeed.conversion_process import converted, folder_of
saved = training.resume_from()
print((converted(saved / "step7", folder_of(saved)) / "step7" / "made of").read_text())
"""


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The first of two workers of a machine resumes what four workers have saved."""
    package = tmp_path / "packages" / "deepspeed" / "checkpoint"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").touch()
    (package / "ds_to_universal.py").write_text(CONVERTER)
    saved = tmp_path / "saved" / "step7"
    saved.mkdir(parents=True)
    for rank in range(4):
        (saved / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt").write_bytes(b"x" * 100)
    write(record(), saved.parent)
    (tmp_path / "scratch").mkdir()
    variables = {
        "PYTHONPATH": f"{SITE}{os.pathsep}{tmp_path / 'packages'}",
        "REMORA_RESUME_DIR": str(saved.parent),
        "REMORA_SCRATCH_DIR": str(tmp_path / "scratch"),
        "REMORA_CONVERSION_PROCESSES": "2",
        "CALLS": str(tmp_path / "calls"),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "RANK": "0",
        "LOCAL_RANK": "0",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for name in ("REMORA_CONVERSION_BEGUN", "REMORA_CHANNEL_FD", "CONVERTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(conversion_process, "processes_for", lambda _: 2)
    yield tmp_path
    os.environ.pop("REMORA_CONVERSION_BEGUN", None)


def record(**changes: Any) -> Record:
    fields = {"tag": "step7", "world_size": 4, "copies": 4, "stage": 2, "global_batch": 8, "folder": None}
    return Record(**{**fields, "parameters": 1, "model": "m", **changes})


def calls(job: Path) -> list[dict[str, Any]]:
    file = job / "calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def run(program: str) -> str:
    """What a script prints."""
    command = [sys.executable, "-c", program]
    # One that waits for a conversion that does not begin would wait for ever.
    return subprocess.run(
        command, check=True, stdout=subprocess.PIPE, text=True, timeout=100.0
    ).stdout.strip()


def saved(job: Path) -> Path:
    return job / "saved"


def test_it_begins_with_the_interpreter_and_not_with_the_load(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = job / "pipe"
    os.mkfifo(pipe)
    monkeypatch.setenv("CONVERTER", "waits")
    monkeypatch.setenv("PIPE", str(pipe))
    # The script does nothing of Remora: it is over when the converter, which waits for it, has come so far.
    run("import os; open(os.environ['PIPE'], 'w').close()")
    assert len(calls(job)) == 1


def test_interpreters_of_one_worker_convert_once(job: Path) -> None:
    run("import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)")
    assert run(SCRIPT) == run(SCRIPT) == str(saved(job) / "step7")
    (call,) = calls(job)
    assert call["REMORA_CHANNEL_FD"] is None
    assert call["OMP_NUM_THREADS"] == "1", "its processes are forked"
    assert call["PYTHONPATH"] == str(job / "packages"), "without what wraps DeepSpeed for scripts"


def test_interpreters_that_begin_at_one_moment_convert_once(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one stands still before it has the lock, until the second one is through."""
    stands, goes_on, flock = threading.Event(), threading.Event(), fcntl.flock

    def slow(file: Any, operation: int) -> None:
        if not stands.is_set():
            stands.set()
            assert goes_on.wait(60.0)
        flock(file, operation)

    monkeypatch.setattr(conversion_process.fcntl, "flock", slow)
    folders: list[Path] = []

    def convert() -> None:
        folders.append(converted(saved(job) / "step7", folder_of(saved(job))))

    first = threading.Thread(target=convert)
    first.start()
    assert stands.wait(60.0)
    convert()
    goes_on.set()
    first.join()
    assert folders == [folder_of(saved(job))] * 2
    assert len(calls(job)) == 1


@pytest.mark.parametrize(
    ("variables", "changes"),
    [
        ({"LOCAL_RANK": "1", "RANK": "1"}, {}),
        ({"WORLD_SIZE": "4"}, {}),
        ({"WORLD_SIZE": "3"}, {"world_size": 8}),
        ({"REMORA_CONVERSION_BEGUN": "1"}, {}),
        ({"WORLD_SIZE": "8"}, {"world_size": 8}),
        ({}, {"copies": 0}),
        ({}, {"copies": "four"}),
    ],
)
def test_what_needs_none_or_is_anothers_is_not_begun(
    variables: dict[str, str], changes: dict[str, Any], job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    write(record(**changes), saved(job))
    begin_ahead()
    assert not folder_of(saved(job)).exists()


def test_checkpoints_without_parts_of_zero_or_a_record_are_left_to_the_load(job: Path) -> None:
    for file in (saved(job) / "step7").iterdir():
        file.unlink()
    begin_ahead()
    (saved(job) / "remora-deepspeed.json").unlink()
    os.environ.pop("REMORA_CONVERSION_BEGUN")
    begin_ahead()
    assert not folder_of(saved(job)).exists()


@pytest.mark.parametrize("how", ["dies once", "refuses together"])
def test_processes_that_fail_together_are_followed_by_one_that_works_alone(
    how: str, job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CONVERTER", how)
    folder = converted(saved(job) / "step7", folder_of(saved(job)))
    assert re.fullmatch(
        r"remora: the checkpoint was converted .* in \d+\.\d s by processes: 1; the script waited \d+\.\d s for it\n",
        capsys.readouterr().err,
    )
    assert (folder / "step7" / "made of").is_file()
    assert [(call["workers"], call["merging"]) for call in calls(job)] == [(2, 2), (1, 1)]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (
            "dies",
            "was killed twice; give the workers more memory, or more space in their folders, or start as many",
        ),
        (
            "refuses",
            r"another number of workers \(ZeroDivisionError: division by zero\); start as many workers as wrote it$",
        ),
    ],
)
def test_what_cannot_be_converted_is_refused_with_one_sentence(
    how: str, said: str, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONVERTER", how)
    with pytest.raises(Refused, match=said):
        converted(saved(job) / "step7", folder_of(saved(job)))


def test_a_machine_that_can_start_no_process_says_so_to_all_ranks(
    job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the other ranks wait for is an answer, and no error of this one alone."""

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(conversion_process.subprocess, "Popen", full)
    with pytest.raises(
        Refused, match=r"cannot be converted for another number of workers here: .*No space left"
    ):
        converted(saved(job) / "step7", folder_of(saved(job)))


def test_each_engine_of_a_checkpoint_has_a_folder_of_its_own(job: Path) -> None:
    assert folder_of(saved(job)) == job / "scratch" / "universal"
    assert folder_of(saved(job) / "critic") == job / "scratch" / "universal-critic"
    assert folder_of(Path("/elsewhere")) == job / "scratch" / "universal"


@pytest.mark.parametrize(
    ("asked", "cpus", "free", "expected"),
    [
        ("8", 64, 10_000, 8),
        ("8", 2, 10_000, 2),
        ("64", 64, 100_000, 16),
        ("8", 64, 700, 3),
        ("8", 64, 0, 1),
        ("many", 64, 10_000, 2),
    ],
)
def test_processes_are_bounded_by_processors_and_memory(
    asked: str, cpus: int, free: int, expected: int, job: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMORA_CONVERSION_PROCESSES", asked)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)))
    monkeypatch.setattr(conversion_process, "_free_bytes", lambda: free)
    assert processes_for(saved(job) / "step7") == expected


def test_a_limit_of_a_container_counts_and_not_the_memory_of_its_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = conversion_process._free_bytes()
    monkeypatch.setattr(conversion_process, "_left_by_limits", lambda: iter([5 << 20, 3 << 20]))
    assert conversion_process._free_bytes() == 3 << 20 < machine
    monkeypatch.setattr(conversion_process, "_left_by_limits", lambda: iter([-1]))
    assert conversion_process._free_bytes() == 0


def test_the_memory_of_this_machine_is_known() -> None:
    assert conversion_process._free_bytes() > 2**20
