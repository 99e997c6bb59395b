"""Runs one benchmark, or all of them: `make bench`, `make bench-elastic` or `make bench-backends`.

It ends with 1 when a part failed or could not be measured; parts that were excluded by an option do not count.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from benchmarks import backends, elastic, environments, page, planner, ray_packer, recovery, service, what_if

OUT = Path(__file__).parent / "out"


def main() -> int:
    """Run what was asked for, and say on standard error what has no figure; 1 when that was not asked for."""
    arguments = options()
    benchmarks: dict[str, Callable[[], dict[str, Any]]] = {
        "elastic": elastic.run,
        "recovery": recovery.run_and_write,
        "backends": lambda: backends.run(leave_out=arguments.leave_out, rounds=arguments.rounds),
        "service": service.run,
        "environments": environments.run,
        "page": page.run,
        "planner": lambda: {**planner.run(), **ray_packer.run(), **what_if.run()},
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    is_whole = True
    for name, run in benchmarks.items():
        if arguments.name in (None, name):
            result = run()
            (arguments.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
            print(json.dumps(result), flush=True)
            for line in without_figure(result):
                print(f"{name}: {line}", file=sys.stderr)
            is_whole = is_whole and not (result.get("failed") or result.get("missing"))
    return 0 if is_whole else 1


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "name",
        nargs="?",
        choices=["backends", "elastic", "environments", "page", "planner", "recovery", "service"],
    )
    parser.add_argument(
        "--leave-out",
        action="append",
        default=[],
        choices=backends.names(),
        help="part of `backends`; repeat it",
    )
    parser.add_argument(
        "--rounds", type=int, help="of each contest of `backends`; few show that it runs, and measure little"
    )
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the documents")
    return parser.parse_args()


def without_figure(result: Mapping[str, Any]) -> Iterator[str]:
    """A line for each part of a document that was not measured (pure)."""
    for part, reason in result.get("failed", {}).items():
        yield f"{part} FAILED: {reason}"
    for part, reason in result.get("missing", {}).items():
        yield f"{part} IS NOT MEASURED: {reason}"
    for part in result.get("left_out", []):
        yield f"{part} was left out, as asked"


if __name__ == "__main__":
    sys.exit(main())
