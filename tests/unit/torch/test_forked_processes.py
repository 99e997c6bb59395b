"""What is garbage in a worker is not collected in a process that is forked from it."""

from __future__ import annotations

import subprocess
import sys

import pytest

#: A process group of gloo becomes garbage, and a process like that of a DataLoader collects garbage.
COLLECTS = """
import gc, multiprocessing, sys, threading
import torch
import torch.distributed as dist
import remora.torch.group
gc.disable()
backend = dist.ProcessGroupGloo(dist.HashStore(), 0, 1)
backend.allreduce([torch.zeros(1)]).wait()
garbage = [backend]
garbage.append(garbage)
del garbage, backend
if sys.argv[1] == "on":
    gc.enable()

def collect():
    assert gc.isenabled() == (sys.argv[1] == "on")
    gc.collect()
    print("collected", flush=True)

process = multiprocessing.get_context("fork").Process(target=collect)
process.start()
assert gc.isenabled() == (sys.argv[1] == "on")
process.join()
"""


@pytest.mark.parametrize("collections", ["on", "off"])
def test_a_forked_process_does_not_wait_for_threads_that_it_does_not_have(collections: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COLLECTS, collections], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "collected\n", done.stderr
    assert done.returncode == 0
