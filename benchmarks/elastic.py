"""What elasticity costs, beside stock Ray Train 2.60 with default settings in the same run.

When nodes are lost and won, both train the digits network with three workers of one CPU on three local nodes; a node is
killed by SIGKILL.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks import (
    agreement,
    regroupings,
    reshard_planning,
    resume_bytes,
    resume_near,
    resume_shards,
    sharded_stall,
    stall,
    steady,
    submit,
    verification,
    walls,
)
from benchmarks.remora_cluster import RemoraCluster, Run, remora_cluster, until
from benchmarks.samples import lost_and_doubled, read_samples
from benchmarks.steps import Step, after_loss, pause_at_growth, recovered, repeated
from benchmarks.stock_cluster import StockCluster, stock_cluster
from benchmarks.table import table
from cluster.local.gcs import GcsUse

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "benchmarks" / "elastic_train.py"
EXAMPLE = ROOT / "examples" / "elastic" / "train.py"
#: Training samples of the digits, and steps of an epoch.
SAMPLES, EPOCH_STEPS = 1437, 15
#: Steps that are done before anything happens.
WARM = 60
#: Seconds until they are.
WARM_S = 180.0
#: Seconds between a notice and its deadline.
NOTICE_S = 20.0
#: Seconds for which nothing replaces a node that was killed, in which the head of the cluster is looked at.
UNREPLACED_S = 10.0
#: Seconds until a node that was added trains.
GROW_S = 180.0
#: Seconds that the peer may take.
STOCK_PATIENCE_S = 240.0


def run() -> dict[str, Any]:
    """All of it, as the document that is written."""
    document: dict[str, Any] = {}
    for part in (disturbances, steady_steps, checkpoint_stalls, submission, isolation, resharding, leftovers):
        show(f"{part.__name__} ...")
        document.update(part())
    show(table(document))
    return document


def disturbances() -> dict[str, Any]:
    """What losing and winning nodes costs."""
    with remora_cluster(3) as cluster:
        ours, grow = remora_loss_and_growth(cluster)
        notice = remora_notice(cluster)
    stock, stock_grow = stock_loss_and_growth()
    return {
        "silent_death": {
            "remora_s": ours["s"],
            "stock_s": stock["s"],
            "remora_repeated_steps": ours["repeated"],
            "stock_repeated_steps": stock["repeated"],
            "remora_gcs_core_share": ours["gcs_core_share"],
        },
        "notice": {**notice, "stock_repeated_steps": stock_notice()},
        "grow": {"remora_pause_s": grow, "stock_pause_s": stock_grow},
    }


def steady_steps() -> dict[str, Any]:
    """What the loop costs when nothing happens."""
    return {**steady.ratios(steady.run()), **agreement.run(), **verification.run()}


def checkpoint_stalls() -> dict[str, Any]:
    """How long a checkpoint holds the loop up."""
    return {"stall": stall.run(), "sharded_stall": sharded_stall.run()}


def submission() -> dict[str, Any]:
    """How long a job takes to begin."""
    return {"submit_to_first_step": submit.run()}


def isolation() -> dict[str, Any]:
    """What it costs that commands run as users of their own."""
    return {"walls": walls.run()}


def resharding() -> dict[str, Any]:
    """How long large groups plan which blocks of a sharded model travel, and what a resume reads."""
    return {**reshard_planning.run(), **resume_bytes.run(), **resume_near.run(), **resume_shards.run()}


def leftovers() -> dict[str, Any]:
    """What many regroupings leave behind in the processes of workers."""
    return regroupings.run()


def show(what: Any) -> None:
    """For people; the document alone goes to standard output."""
    Console(stderr=True).print(what)


@contextlib.contextmanager
def trained(cluster: RemoraCluster) -> Iterator[tuple[Run, Path]]:
    """An attempt that trains, and the folder in which its workers write down their samples."""
    with tempfile.TemporaryDirectory(prefix="remora-samples-") as name:
        code, samples = Path(name) / "code", Path(name) / "samples"
        code.mkdir()
        samples.mkdir()
        shutil.copy(SCRIPT, code / "train.py")
        shutil.copy(EXAMPLE, code / "elastic_example.py")
        # Its samples lie in a folder that users of jobs do not see.
        attempt = Run(cluster, code, ["python", "train.py", str(samples), "1000000"], isolation="none")
        try:
            until(lambda: attempt.steps and attempt.steps[-1][1] >= WARM, WARM_S)
            yield attempt, samples
        finally:
            attempt.close()


def remora_loss_and_growth(cluster: RemoraCluster) -> tuple[dict[str, Any], float | None]:
    """Kill one of three nodes, then let another one come; meanwhile nothing replaces it for a while."""
    with trained(cluster) as (attempt, _):
        gcs = GcsUse(cluster.home)
        killed_at = cluster.kill(cluster.provider.node_ids()[0])
        loss = after_loss(until(lambda: recovered(attempt.steps, killed_at), 60), killed_at)
        until(lambda: time.time() >= killed_at + UNREPLACED_S, UNREPLACED_S + 5)
        loss["gcs_core_share"] = round(gcs.share(), 3)
        cluster.provider.delete(cluster.provider.node_ids()[0])
        cluster.add_node()
        return loss, until(lambda: pause_at_growth(attempt.steps, killed_at), GROW_S)


def remora_notice(cluster: RemoraCluster) -> dict[str, Any]:
    """Announce the end of one of three nodes 20 s ahead."""
    with trained(cluster) as (attempt, samples):
        cluster.drain(cluster.provider.node_ids()[0], time.time() + NOTICE_S)
        until(lambda: attempt.steps[-1][2] == 2, 60)
        epoch_ended = (attempt.steps[-1][1] // EPOCH_STEPS + 1) * EPOCH_STEPS + WARM
        until(lambda: attempt.steps[-1][1] > epoch_ended, 60)
        numbers = [step for _, step, _ in attempt.steps]
        lost, doubled = lost_and_doubled(read_samples(samples), epoch_ended // EPOCH_STEPS, SAMPLES)
        return {
            "repeated_steps": len(numbers) - len(set(numbers)),
            "samples_lost": lost,
            "samples_doubled": doubled,
        }


def stock_notice() -> int:
    """Steps that the peer repeats after the same notice; the node goes at its deadline."""
    with tempfile.TemporaryDirectory(prefix="rb-") as folder, stock_cluster(3) as cluster:
        lines = Path(folder) / "lines"
        lines.touch()
        driver = start_stock(cluster, lines, Path(folder))
        try:
            until(lambda: (s := read(lines)) and s[-1][1] >= WARM and s[-1][2] == 3, STOCK_PATIENCE_S)
            deadline_at = time.time() + NOTICE_S
            cluster.drain(cluster.nodes[1], deadline_at)
            until(lambda: time.time() >= deadline_at, NOTICE_S + 5)
            cluster.kill(cluster.nodes[1])
            steps = until(lambda: recovered(read(lines), deadline_at - NOTICE_S), STOCK_PATIENCE_S)
            return repeated(steps)
        finally:
            driver.kill()
            driver.wait()


def stock_loss_and_growth() -> tuple[dict[str, Any], float | None]:
    """The same with the peer, and a checkpoint every 5 steps."""
    with tempfile.TemporaryDirectory(prefix="rb-") as folder, stock_cluster(3) as cluster:
        lines = Path(folder) / "lines"
        lines.touch()
        driver = start_stock(cluster, lines, Path(folder))
        try:
            until(lambda: (s := read(lines)) and s[-1][1] >= WARM and s[-1][2] == 3, STOCK_PATIENCE_S)
            killed_at = time.time()
            cluster.kill(cluster.nodes[1])
            loss = after_loss(until(lambda: recovered(read(lines), killed_at), STOCK_PATIENCE_S), killed_at)
            cluster.add_node()
            try:
                return loss, until(lambda: pause_at_growth(read(lines), killed_at), STOCK_PATIENCE_S)
            except TimeoutError:
                return loss, None
        finally:
            driver.kill()
            driver.wait()


def start_stock(cluster: StockCluster, lines: Path, folder: Path) -> subprocess.Popen[bytes]:
    """The peer's driver process."""
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "stock_train.py"),
        "1000000",
        str(lines),
        str(folder),
    ]
    with (folder / "driver.log").open("wb") as log:
        return subprocess.Popen(command, env=cluster.environment(), stdout=log, stderr=log)


def read(lines: Path) -> list[Step]:
    """Steps that the peer wrote down; a line that is being written is left out."""
    complete = [line.split() for line in lines.read_text().splitlines()]
    return [(float(line[0]), int(line[1]), int(line[2])) for line in complete if len(line) == 3]


if __name__ == "__main__":
    print(json.dumps(disturbances()))
