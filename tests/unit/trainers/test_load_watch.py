"""How busy a command keeps this machine is measured in real processes."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainers.driver.account import Account
from trainers.supervisor.load_watch import Gpus, Load, LoadWatch, processor_s

#: Says a line once it has burnt its first half second of a processor, and goes on.
BURNING = """
import time
while time.process_time() < 0.5:
    pass
print("burnt", flush=True)
while True:
    pass
"""


@pytest.fixture
def burning() -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", BURNING], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "burnt\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def test_the_time_of_processes_is_counted_and_one_that_is_gone_has_none(
    burning: subprocess.Popen[str],
) -> None:
    alone = processor_s([burning.pid])
    assert alone > 0.4
    assert processor_s([2**22 + 1]) == 0.0
    assert processor_s([burning.pid, 2**22 + 1]) >= alone


def test_names_with_brackets_and_spaces_do_not_shift_the_numbers(tmp_path: Path) -> None:
    ticks = os.sysconf("SC_CLK_TCK")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "stat").write_text(
        f"7 (a) b) R {'0 ' * 10}{ticks} {ticks} {2 * ticks} {3 * ticks} 20 0\n"
    )
    assert processor_s([7], tmp_path) == 7.0


def test_a_command_that_computes_is_reported_again_and_again(burning: subprocess.Popen[str]) -> None:
    said: queue.Queue[Load] = queue.Queue()
    watch = LoadWatch(lambda: [burning.pid], [], said.put, first_s=0.1, every_s=0.1)
    watch.start()
    try:
        # On a machine that has other things to do it gets no processor for some looks.
        loads = iter(lambda: said.get(timeout=60), None)
        busy = next(load for load in loads if load.cpu > 0.0)
    finally:
        watch.close()
    assert (busy.gpu, busy.gpus) == (None, 0)


def smi(folder: Path, says: str) -> str:
    """A program in the place of nvidia-smi, which writes down what it is asked."""
    program = folder / "nvidia-smi"
    program.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n{says}\n')
    program.chmod(0o755)
    return str(program)


def test_the_gpus_of_the_worker_alone_are_asked_for(tmp_path: Path) -> None:
    gpus = Gpus(["2", "3"], smi(tmp_path, "printf '90\\n70\\n'"))
    assert gpus.busy() == (0.8, 2)
    assert (tmp_path / "asked").read_text().split()[0] == "--id=2,3"


@pytest.mark.parametrize("says", ["echo '[N/A]'", "echo 'No devices were found'; exit 6", "echo 50; exit 1"])
def test_gpus_that_do_not_say_it_are_not_known(tmp_path: Path, says: str) -> None:
    assert Gpus(["0"], smi(tmp_path, says)).busy() == (None, 0)


def test_a_machine_without_the_program_is_asked_once(tmp_path: Path) -> None:
    gpus = Gpus(["0"], str(tmp_path / "nvidia-smi"))
    assert gpus.busy() == (None, 0)
    program = smi(tmp_path, "echo 50")
    assert gpus.busy() == (None, 0)
    assert Gpus(["0"], program).busy() == (0.5, 1)


def test_of_each_rank_the_newest_load_waits_for_the_service_beside_the_totals() -> None:
    account = Account(1000, now=lambda: 42.0)
    account.load(0, {"cpu": 1.0})
    account.load(1, {"cpu": 2.0})
    account.load(0, {"cpu": 3.0})
    (record,) = account.records(0, 10)
    assert record.kind == "progress"
    assert record.body == {"loads": {0: {"cpu": 3.0, "at": 42.0}, 1: {"cpu": 2.0, "at": 42.0}}}
    account.load(1, {"cpu": 4.0})
    (later,) = account.records(record.seq, 10)
    assert set(later.body["loads"]) == {1}
