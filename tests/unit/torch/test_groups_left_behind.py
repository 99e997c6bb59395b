"""A script that ends right after it left groups with a frozen peer ends as it says, and not by SIGABRT."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from remora.free_ports import free_port

pytestmark = pytest.mark.slow

#: Two of them meet in several groups; the one that is asked to leave them under way, and ends with 5.
SCRIPT = """
import os, sys, time
import torch
from remora.script.link import Rendezvous
from remora.torch.group import form

rank, port = int(sys.argv[1]), int(sys.argv[2])
whole = form(Rendezvous(1, rank, 2, 0, 1, 0, "127.0.0.1", port), check=lambda: None, on_cuda=False)
groups = [whole.subgroup([0, 1], str(number)) for number in range(4)]
for group in groups:
    group.wait(group.sum(torch.ones(1)))
print("met", flush=True)
sys.stdin.readline()

class LongEnd:
    '''The interpreter takes its time to end, as that of a big script does.'''

    def __del__(self, write=os.write, read=os.read, sleep=time.sleep):
        write(1, b"ends" + bytes([10]))
        read(0, 1)
        sleep(0.5)

end = LongEnd()
# Nothing else runs from here until this thread waits for something.
sys.setswitchinterval(5.0)
for group in groups:
    group.sum(torch.ones(1000))
    group.abandon()
sys.exit(5)
"""


@pytest.fixture
def pair() -> Iterator[list[subprocess.Popen[str]]]:
    """Both ranks, which have met."""
    port = str(free_port())
    both = [
        subprocess.Popen(
            [sys.executable, "-c", SCRIPT, rank, port],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in ("0", "1")
    ]  # fmt: skip
    try:
        for one in both:
            assert one.stdout is not None
            assert one.stdout.readline() == "met\n"
        yield both
    finally:
        for one in both:
            one.kill()
            one.communicate()


def test_a_script_that_left_its_groups_ends_with_its_own_exit_code(pair: list[subprocess.Popen[str]]) -> None:
    leaving, frozen = pair
    frozen.send_signal(signal.SIGSTOP)
    begin_to_leave(leaving)
    _, errors = leaving.communicate("\n", timeout=60)
    assert (leaving.returncode, errors) == (5, "")


def test_so_does_one_whose_peer_dies_while_the_interpreter_ends(pair: list[subprocess.Popen[str]]) -> None:
    leaving, frozen = pair
    frozen.send_signal(signal.SIGSTOP)
    begin_to_leave(leaving)
    frozen.kill()
    frozen.wait()
    _, errors = leaving.communicate("\n", timeout=60)
    assert (leaving.returncode, errors) == (5, "")


def begin_to_leave(leaving: subprocess.Popen[str]) -> None:
    """Let it leave its groups and wait until its interpreter ends."""
    assert leaving.stdin is not None
    assert leaving.stdout is not None
    leaving.stdin.write("leave\n")
    leaving.stdin.flush()
    assert leaving.stdout.readline() == "ends\n"
