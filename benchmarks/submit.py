"""From the command that submits a job to its first step, on a warm cluster, beside stock Ray Train in the same run.

Ours: `remora submit` of `examples/elastic` until the service has stored the first metric.  The peer: the process that
`ray job submit` would start, an equivalent TorchTrainer script, until its first step is done; what the Jobs API itself
takes is given to it.  Each has a cluster that has run the same job once before and was at rest for a while, as clusters
are between two jobs of a person; figures are medians of three.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.remora_cluster import until
from benchmarks.stock_cluster import StockCluster, stock_cluster
from remora import Client
from remora.states import NodeState

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = ROOT / "examples" / "elastic"
NODES = 2
TRIES = 3
PATIENCE_S = 180.0
#: Seconds without work before each try.
REST_S = 20.0


def run() -> dict[str, float]:
    """Median seconds of both."""
    ours = remora_seconds()
    stock = stock_seconds()
    return {"remora_s": round(median(ours), 3), "stock_s": round(median(stock), 3)}


def remora_seconds() -> list[float]:
    """Seconds of each try."""
    with (
        tempfile.TemporaryDirectory(prefix="remora-submit-") as name,
        service(Path(name)) as url,
        Client(url) as client,
    ):
        submit_once(client, url)
        return [submit_once(client, url).seconds for _ in range(TRIES)]


@dataclass(frozen=True)
class Submission:
    """One job that was submitted and has trained."""

    job: str
    #: Seconds since 1970.
    began_at: float
    #: Until its first metric was stored.
    seconds: float


def submit_once(client: Client, url: str, rest_s: float = REST_S) -> Submission:
    """Submit after a rest, and wait until the first metric of the new job is stored; the job is cancelled then."""
    until(lambda: sum(n.state is NodeState.READY for n in client.nodes()) == NODES, PATIENCE_S)
    time.sleep(rest_s)
    command = [str(Path(sys.executable).with_name("remora")), "submit", "--json", str(EXAMPLE / "job.yaml")]
    began_at, began = time.time(), time.monotonic()
    said = subprocess.run(command, env={**os.environ, "REMORA_SERVER": url}, capture_output=True, check=True)
    job = json.loads(said.stdout)["id"]
    until(lambda: client.job(job).step, PATIENCE_S)
    seconds = time.monotonic() - began
    client.cancel(job)
    client.wait(job, PATIENCE_S)
    return Submission(job, began_at, seconds)


@contextmanager
def service(home: Path) -> Iterator[str]:
    """`remora up`, ended whatever happens; yields its address."""
    command = [Path(sys.executable).with_name("remora"), "up", "--home", home, "--port", 0, "--nodes", NODES]
    with (home / "up.log").open("wb") as log:
        up = subprocess.Popen([str(part) for part in command], stdout=log, stderr=log, start_new_session=True)
    try:
        yield until(lambda: address(home), PATIENCE_S)
    finally:
        up.terminate()
        up.wait()


def address(home: Path) -> str | None:
    """Where the API listens, once it does."""
    try:
        return (home / "api.url").read_text().strip() or None
    except OSError:
        return None


def stock_seconds() -> list[float]:
    """Seconds of each try of the peer."""
    with stock_cluster(NODES) as cluster:
        stock_once(cluster)
        return [stock_once(cluster) for _ in range(TRIES)]


def stock_once(cluster: StockCluster) -> float:
    """Seconds until the peer's first step is written down; it ends soon after."""
    with tempfile.TemporaryDirectory(prefix="rb-") as folder:
        lines = Path(folder) / "lines"
        lines.touch()
        words = ["20", str(lines), folder]
        time.sleep(REST_S)
        began = time.monotonic()
        with (Path(folder) / "driver.log").open("wb") as log:
            driver = subprocess.Popen(
                [sys.executable, str(ROOT / "benchmarks" / "stock_train.py"), *words],
                env=cluster.environment(),
                stdout=log,
                stderr=log,
            )
        try:
            until(lambda: lines.stat().st_size, PATIENCE_S)
            seconds = time.monotonic() - began
            driver.wait(PATIENCE_S)
            return seconds
        finally:
            driver.kill()
            driver.wait()


if __name__ == "__main__":
    print(json.dumps(run()))
