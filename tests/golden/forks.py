"""The processes of workers, forked from one that has imported what all of them need."""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")


def begin_as_a_script() -> None:
    """Let this worker's processes, as those of a DataLoader, be forked from it, as they are in a script of its own.

    Otherwise each worker would start a server of its own for them, which imports all that follows, for a minute on a
    busy machine; and the forks of a process with the threads of a worker group would not be tested.
    """
    multiprocessing.set_start_method("fork", force=True)


#: `frozen` is the last one: it is about everything that was imported before it.
PROCESSES.set_forkserver_preload(
    [
        "tests.golden.worker",
        "tests.golden.sharded_worker",
        "tests.golden.steps_worker",
        "tests.golden.constructs",
        "tests.golden.frozen",
    ]
)
