"""Runs one benchmark, or all of them: `make bench`, `make bench-elastic` or `make bench-backends`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import backends, elastic, planner, ray_packer, service, what_if

OUT = Path(__file__).parent / "out"
BENCHMARKS: dict[str, Callable[[], dict[str, Any]]] = {
    "elastic": elastic.run,
    "backends": backends.run,
    "service": service.run,
    "planner": lambda: {**planner.run(), **ray_packer.run(), **what_if.run()},
}


def main() -> int:
    """Run what was asked for; 1 when a part of it failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("name", nargs="?", choices=sorted(BENCHMARKS))
    chosen = parser.parse_args().name
    OUT.mkdir(exist_ok=True)
    is_whole = True
    for name, run in BENCHMARKS.items():
        if chosen in (None, name):
            result = run()
            (OUT / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
            print(json.dumps(result))
            is_whole = is_whole and not result.get("failed")
    return 0 if is_whole else 1


if __name__ == "__main__":
    sys.exit(main())
