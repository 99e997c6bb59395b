"""Why a cell of the table is empty; a reason for the whole backend has no case."""

from __future__ import annotations

REASONS: dict[str | tuple[str, str], str] = {
    "horovod": "no release builds against the PyTorch of today as it is; one that `make horovod` built runs with `mpi`",
}
