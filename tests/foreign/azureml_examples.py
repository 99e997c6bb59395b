"""How many jobs of azureml-examples become specifications: `python -m tests.foreign.azureml_examples CHECKOUT`.

Prints one line of JSON.  Nothing is submitted.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from tests.foreign.counting import count_all, report

_SCHEMA = re.compile(r"/(\w+)Job\.schema\.json")
_TYPES = ("command", "sweep", "pipeline", "automl", "spark", "parallel", "finetuning", "distillation")


def kind_of(path: Path, documents: list[Any]) -> tuple[str, Any] | None:
    """The type of a job of Azure ML; None for anything else, components among it."""
    raw = documents[0] if len(documents) == 1 else None
    if not isinstance(raw, dict):
        return None
    schema = str(raw.get("$schema", ""))
    found = _SCHEMA.search(schema)
    if found is not None:
        return found.group(1).lower(), raw
    is_job = (
        raw.get("type") in _TYPES and not schema and ("jobs" in raw or "compute" in raw or "command" in raw)
    )
    return (str(raw["type"]), raw) if is_job else None


def main() -> None:
    """Count, and print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    checkout = parser.parse_args().checkout
    print(report(checkout, count_all(checkout, kind_of)))


if __name__ == "__main__":
    main()
