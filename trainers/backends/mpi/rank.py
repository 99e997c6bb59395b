"""Brings a rank's place in MPI from mpirun, which deals it, to the worker's command, which a supervisor runs.

    python -S -E rank.py give                     started by mpirun, once for each rank
    python -S -E rank.py take RANK COMMAND...     started by the supervisor of that rank

Both meet at named pipes in a folder of their node, which stands in REMORA_MPI_FOLDER.  `take` becomes the command,
with Open MPI's variables in its environment, so that output, exit code, signals and the channel to the supervisor are
the command's own.  `give` waits until the supervisor says that the command returned 0: mpirun ends when all ranks have,
and they may need it until then.
Standard library only.
"""

from __future__ import annotations

import json
import os
import sys

#: Variables with which Open MPI 4 tells a process its place: https://docs.open-mpi.org, "Environment variables".
_PREFIXES = ("OMPI_", "PMIX_", "ORTE_")


def place_pipe(folder: str, rank: int) -> str:
    """Pipe that carries a rank's variables; it goes when they have arrived."""
    return os.path.join(folder, f"mpi-{rank}")


def over_pipe(folder: str, rank: int) -> str:
    """Pipe that carries the word that a rank's command returned 0."""
    return os.path.join(folder, f"mpi-{rank}-over")


def make_pipes(folder: str, rank: int) -> None:
    """Have both pipes; whoever comes first makes them."""
    for path in (place_pipe(folder, rank), over_pipe(folder, rank)):
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            pass


def give(folder: str) -> None:
    """Hand over the place that mpirun has given this process, and wait for the end of the command."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    place = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    make_pipes(folder, rank)
    # Open for both, so that opening waits for nobody and no supervisor meets a pipe without a reader.
    over = os.open(over_pipe(folder, rank), os.O_RDWR)
    with open(place_pipe(folder, rank), "w") as pipe:
        json.dump(place, pipe)
    os.read(over, 1)


def take(folder: str, rank: int, command: list[str]) -> None:
    """Wait for the rank's place and become the command; never returns."""
    make_pipes(folder, rank)
    with open(place_pipe(folder, rank)) as pipe:
        place = json.load(pipe)
    os.unlink(place_pipe(folder, rank))
    # Parameters may differ between nodes, and mpirun has handed over those of its own.
    settings = {name: value for name, value in os.environ.items() if name.startswith("OMPI_MCA_")}
    try:
        os.execvpe(command[0], command, {**os.environ, **place, **settings})
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    os._exit(127)


def tell_over(folder: str, rank: int) -> None:
    """Say that the command of a rank returned 0; fine when nobody waits for it."""
    try:
        pipe = os.open(over_pipe(folder, rank), os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return
    with os.fdopen(pipe, "wb") as over:
        over.write(b".")


if __name__ == "__main__":
    if sys.argv[1] == "give":
        give(os.environ["REMORA_MPI_FOLDER"])
    else:
        take(os.environ["REMORA_MPI_FOLDER"], int(sys.argv[2]), sys.argv[3:])
