"""The processes of workers, forked from one that has imported what all of them need."""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
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
