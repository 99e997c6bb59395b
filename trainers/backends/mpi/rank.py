"""Passes Open MPI's variables of a rank from mpirun, which assigns them, to the worker's command.

    python -S -E rank.py give                     started by mpirun, once for each rank
    python -S -E rank.py take RANK COMMAND...     started by the supervisor of that rank

Both use named pipes in a folder of their node, REMORA_MPI_FOLDER.  `take` becomes the command, with
Open MPI's variables in its environment, so that output, exit code, signals and the channel to the supervisor are the
command's own.  `give` waits until the supervisor reports that the command returned 0: mpirun ends when all ranks have
ended, and they may need it until then.
Standard library only.
"""

from __future__ import annotations

import json
import os
import stat
import sys

#: Variables by which Open MPI 4 gives a process its rank: https://docs.open-mpi.org, "Environment variables".
_PREFIXES = ("OMPI_", "PMIX_", "ORTE_")


def variables_pipe(folder: str, rank: int) -> str:
    """Pipe that carries a rank's variables; it goes when they have arrived."""
    return os.path.join(folder, f"mpi-{rank}")


def return_pipe(folder: str, rank: int) -> str:
    """Pipe that carries a byte once a rank's command returned 0."""
    return os.path.join(folder, f"mpi-{rank}-over")


def make_pipes(folder: str, rank: int) -> None:
    """Make both pipes, unless the other process has made them."""
    for path in (variables_pipe(folder, rank), return_pipe(folder, rank)):
        try:
            os.mkfifo(path, 0o600)
        except FileExistsError:
            pass


def give(folder: str) -> None:
    """Pass on the variables that mpirun has given this process, and wait for the end of the command."""
    rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
    variables = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    make_pipes(folder, rank)
    # Open for both, so that opening does not block and the supervisor finds a reader.
    over = os.open(return_pipe(folder, rank), os.O_RDWR)
    with open(variables_pipe(folder, rank), "w") as pipe:
        json.dump(variables, pipe)
    os.read(over, 1)


def take(folder: str, rank: int, command: list[str]) -> None:
    """Wait for the rank's variables and become the command; never returns."""
    make_pipes(folder, rank)
    with open(variables_pipe(folder, rank)) as pipe:
        variables = json.load(pipe)
    os.unlink(variables_pipe(folder, rank))
    # Parameters may differ between nodes, and mpirun has handed over those of its own.
    settings = {name: value for name, value in os.environ.items() if name.startswith("OMPI_MCA_")}
    try:
        os.execvpe(command[0], command, {**os.environ, **variables, **settings})
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    os._exit(127)


def report_return(folder: str, rank: int) -> None:
    """Report that the command of a rank returned 0; does nothing when no process waits for it."""
    try:
        # The command may have put a link or a file into its place.
        pipe = os.open(return_pipe(folder, rank), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return
    with os.fdopen(pipe, "wb") as over:
        if stat.S_ISFIFO(os.fstat(pipe).st_mode):
            over.write(b".")


if __name__ == "__main__":
    if sys.argv[1] == "give":
        give(os.environ["REMORA_MPI_FOLDER"])
    else:
        take(os.environ["REMORA_MPI_FOLDER"], int(sys.argv[2]), sys.argv[3:])
