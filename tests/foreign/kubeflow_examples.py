"""How many manifests of Kubeflow are translated: `python -m tests.foreign.kubeflow_examples CHECKOUT`.

Prints one line of JSON.  Nothing is submitted.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from remora.errors import SpecError
from remora.job_formats import the_jobs
from tests.foreign.counting import count_all, report

_KINDS = ("TrainJob", "PyTorchJob", "TFJob", "MPIJob", "JAXJob", "XGBoostJob", "PaddleJob")


def kind_of(path: Path, documents: list[Any]) -> tuple[str, Any] | None:
    """The kind of the job in a file; None for files without one."""
    try:
        job, _ = the_jobs(documents)
    except SpecError:
        return None
    kind = job.get("kind") if isinstance(job, dict) else None
    return (str(kind), job) if kind in _KINDS else None


def main() -> None:
    """Count, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    checkout = parser.parse_args().checkout
    print(report(checkout, count_all(checkout, kind_of)))


if __name__ == "__main__":
    main()
