"""Why a cell of the table is empty; a reason for the whole backend has no case."""

from __future__ import annotations

REASONS: dict[str | tuple[str, str], str] = {
    ("tensorflow", "resumes same size"): "no test shows it by itself; with another size one does",
    (
        "tensorflow",
        "notice",
    ): "no test shows it by itself; its worker group stops at a checkpoint, as with `command`",
    ("tensorflow", "unmodified script"): "no test shows it yet",
    ("mpi", "resumes same size"): "no test shows it by itself; checkpoints are those of `command`",
    (
        "mpi",
        "notice",
    ): "no test shows it by itself; its worker group stops at a checkpoint, as with `command`",
    "horovod": "no release builds against the PyTorch of today as it is; one built with MPI by hand runs with `mpi`",
}
