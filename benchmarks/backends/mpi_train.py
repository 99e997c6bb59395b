"""One contestant of `benchmarks.backends.mpi`: gradients of a few megabytes, summed over all ranks by MPI.

Trains in alternating blocks by `alternation.py`, which lies beside it.

usage: mpi_train.py NAME FOLDER BLOCKS STEPS
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from alternation import Alternation, wait_for
from mpi4py import MPI

WIDTH = 768


def main() -> None:
    """Train one contestant: least squares by gradient descent, one matrix of parameters."""
    name, folder, blocks, steps = sys.argv[1:5]
    world = MPI.COMM_WORLD
    generator = np.random.default_rng(world.rank)
    x = generator.standard_normal((512, WIDTH), dtype=np.float32)
    y = x @ np.ones((WIDTH, WIDTH), dtype=np.float32)
    weights = np.zeros((WIDTH, WIDTH), dtype=np.float32)
    total = np.empty_like(weights)
    alternation = Alternation(name, Path(folder), int(blocks), int(steps))
    for _ in range(alternation.total):
        # Every rank waits by itself: one that waited inside MPI would take a core from the other contestant.
        alternation.before()
        gradient = x.T @ (x @ weights - y) / len(x)
        world.Allreduce(gradient, total)
        weights -= 0.01 * total / world.size
        alternation.after(world.rank)
    wait_for(Path(folder) / "end")


if __name__ == "__main__":
    main()
