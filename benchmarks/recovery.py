"""Where the time of a recovery, of growth and of a submission goes, in milliseconds: `make bench-recovery`.

One of three nodes is killed, and another one added; each part is the time between two records of the attempt.  Then the
example is submitted to a service, and each part is the time between two events of the job.  The table is written into
`docs/benchmarks.md`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import submit
from benchmarks.elastic import ROOT, show, trained
from benchmarks.recovery_parts import (
    GOALS_MS,
    Parts,
    growth_parts,
    loss_parts,
    medians,
    paused_ms,
    submission_parts,
)
from benchmarks.recovery_table import with_table
from benchmarks.remora_cluster import RemoraCluster, Run, remora_cluster, until
from benchmarks.steps import pause_at_growth, recovered
from cluster.ray.membership import RayMembership
from remora import Client

PAGE = ROOT / "docs" / "benchmarks.md"
#: Losses, growths and submissions that are measured, if a round does not begin later than this.
ROUNDS, BUDGET_S = 5, 90.0
#: Seconds until the survivors of a loss train again, and until a node that was added does.
LOSS_S, GROW_S = 60.0, 180.0
#: Seconds without work before each submission.
REST_S = 3.0


def run() -> dict[str, Any]:
    """Milliseconds of each part of the three, medians over the rounds, with the goals and what a bare library takes."""
    began_at = time.monotonic()
    losses: list[Parts] = []
    growths: list[Parts] = []
    with remora_cluster(3) as cluster, trained(cluster) as (attempt, _):
        while len(losses) < ROUNDS and (not losses or time.monotonic() - began_at < BUDGET_S):
            losses.append(loss(cluster, attempt))
            growths.append(growth(cluster, attempt))
            show(losses[-1] | growths[-1])
    tries = list(submissions())
    measured = {"loss": losses, "growth": growths, "submission": tries}
    return {
        "recovery_ms": {name: medians(parts) for name, parts in measured.items()},
        "pause_ms": paused_ms(medians(growths)),
        "floors_ms": floors(),
        "goals_ms": GOALS_MS,
        "rounds": {name: len(parts) for name, parts in measured.items()},
        "cores": len(os.sched_getaffinity(0)),
        "load": round(os.getloadavg()[1], 1),
    }


def run_and_write() -> dict[str, Any]:
    """The same, and the table in the documentation is replaced."""
    document = run()
    PAGE.write_text(with_table(PAGE.read_text(), document))
    return document


def loss(cluster: RemoraCluster, attempt: Run) -> Parts:
    """Kill a node; the parts of what follows until the survivors' next step."""
    killed_at = cluster.kill(cluster.provider.node_ids()[0])
    until(lambda: recovered(attempt.steps, killed_at), LOSS_S)
    return loss_parts(attempt.records, killed_at)


def growth(cluster: RemoraCluster, attempt: Run) -> Parts:
    """Add a node in place of the one that was killed; the parts of what follows until the first step with it."""
    cluster.provider.delete(cluster.provider.node_ids()[0])
    added_at = time.time()
    node = cluster.add_node()
    until(lambda: node in (seen := RayMembership().observe()) and seen[node].is_alive, GROW_S)
    ready_at = time.time()
    until(lambda: pause_at_growth(attempt.steps, added_at), GROW_S)
    return growth_parts(attempt.records, added_at, ready_at)


def submissions() -> Iterator[Parts]:
    """Submit the example again and again to a service that has run it once."""
    began_at = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="remora-submit-") as name,
        submit.service(Path(name)) as url,
        Client(url) as client,
    ):
        submit.submit_once(client, url, REST_S)
        for number in range(ROUNDS):
            if number and time.monotonic() - began_at > BUDGET_S:
                return
            one = submit.submit_once(client, url, REST_S)
            yield submission_parts(list(client.events(one.job)), one.began_at, one.began_at + one.seconds)


def floors() -> dict[str, float]:
    """What `benchmarks.recovery_floors` prints."""
    command = [sys.executable, "-m", "benchmarks.recovery_floors"]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=300)
    found: dict[str, float] = json.loads(said.stdout)
    return found


if __name__ == "__main__":
    print(json.dumps(run()))
