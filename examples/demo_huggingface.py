"""The Trainer of Hugging Face transformers on two nodes, of which that of rank 0 is lost, all on this machine.

`make demo-huggingface` runs it: a job that brings its packages trains undisturbed; then the same job loses the node of
rank 0, goes on in place, and ends with the same losses.  The last line it prints is one JSON object; it exits with 0
only when everything it promises held.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from examples.demo import (
    DemoFailed,
    Example,
    Seen,
    check,
    embedded_service,
    print_timeline,
    processes_of,
    summary,
    watch,
)
from remora import Client
from remora.errors import RemoraError
from remora.views import Job

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = Example(
    ROOT / "examples/huggingface",
    "eval_accuracy",
    lambda share: share >= 0.9,
    0.3,
    2.0,
    0,
    nodes=2,
    lost_rank=0,
)
UNDISTURBED = Example(EXAMPLE.folder, EXAMPLE.metric, EXAMPLE.is_good_enough, 2.0, nodes=2)
_BUILT = re.compile(r"the environment is ready after ([0-9.]+) s")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--home", type=Path, default=ROOT / ".demo-huggingface", help="made new; stays for you to look at"
    )
    console, home = Console(), parser.parse_args().home.resolve()
    # Nothing is in it yet: the first environment is built from packages that have to be downloaded.
    os.environ["UV_CACHE_DIR"] = str(home / "uv-cache")
    try:
        with embedded_service(home, console, EXAMPLE.nodes) as server, Client(server) as client:
            result = run(client, home, console)
        left = processes_of(home)
        check(not left, f"processes were left behind: {left}")
    except (DemoFailed, RemoraError) as error:
        console.print(f"[red]The demo failed:[/red] {error}\nLogs lie in {home / 'logs'}.")
        return 1
    print(json.dumps(result))
    return 0


def run(client: Client, home: Path, console: Console) -> dict[str, Any]:
    """Train twice, and compare."""
    console.print("The job trains undisturbed; its packages are installed on both nodes first.")
    job, began = watch(client, client.submit(EXAMPLE.folder / "job.yaml"), UNDISTURBED, home, console)
    expected, built_s = losses(client, job), builds(client, job)
    cold = first_step(client, job, began)
    check(bool(built_s), "the log does not say that an environment was built")
    console.print("The same job again; now the node of rank 0 is lost.")
    job, seen = watch(client, client.submit(EXAMPLE.folder / "job.yaml"), EXAMPLE, home, console)
    result = summary(client, job, EXAMPLE, seen)
    print_timeline(console, EXAMPLE, job, seen, result)
    found = losses(client, job)
    check(found.keys() == expected.keys(), "the two jobs do not have the same steps")
    differences = [abs(found[step] - loss) for step, loss in expected.items()]
    verify(result, seen)
    return {
        "steps": result["steps"],
        "repeated_steps": result["repeated_steps"],
        "recovery_s": result["recovery_s"],
        "max_loss_difference": max(differences),
        "environment_s": {"cold": max(built_s), "warm": sum(builds(client, job, until=seen.lost_at))},
        "first_step_s": {"cold": cold, "warm": first_step(client, job, seen)},
        "world_sizes": result["world_sizes"],
        "accuracy": result[EXAMPLE.metric],
    }


def losses(client: Client, job: Job) -> dict[int, float]:
    """The loss of each step."""
    return {point.step: point.values["loss"] for point in client.metrics(job.id) if "loss" in point.values}


def builds(client: Client, job: Job, until: float | None = None) -> list[float]:
    """Seconds that the nodes took to build the environment of a job, as its log says."""
    lines = [line for line in client.logs(job.id) if until is None or line.at < until]
    return [float(found[1]) for line in lines if (found := _BUILT.search(line.text)) is not None]


def first_step(client: Client, job: Job, seen: Seen) -> float:
    """Seconds from the submission to the end of the first step."""
    return round(client.metrics(job.id)[0].at - seen.events[0].at, 2)


def verify(result: dict[str, Any], seen: Seen) -> None:
    """Everything the demo promises."""
    accuracy = result[EXAMPLE.metric]
    check(EXAMPLE.is_good_enough(accuracy), f"only {accuracy} of the sums are right")
    check(seen.lost_at is not None, "no node was taken away")
    check(result["recovery_s"] is not None, "no new step was seen after the loss")
    check(result["repeated_steps"] == 0, f"{result['repeated_steps']} steps were repeated")
    check(result["attempts"] == 1, f"it took {result['attempts']} attempts")
    check(result["world_sizes"][:2] == [2, 1], f"the workers were {result['world_sizes']}")


if __name__ == "__main__":
    sys.exit(main())
