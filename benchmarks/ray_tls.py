"""python -m benchmarks.ray_tls [--rounds N]: what TLS between Ray's processes costs, beside the same without it.

A head and one node on this machine, each round with TLS and without alternately, so that both meet the same load; of
each figure the best of all rounds counts.  The last line is one JSON object: seconds until the head can be reached,
until the node is a member, microseconds of an actor call that waits for its answer, and MB/s of an object from the
node.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import ray

from cluster.local.connection import connect
from cluster.local.environment import process_environment
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.provider import LocalProvider
from cluster.provider import NodeRequest
from cluster.ray.membership import RayMembership

#: Calls of one figure, and figures of one round.
CALLS, BATCHES = 500, 6
#: Bytes of the object that is sent.
OBJECT_BYTES = 40_000_000


class Answering:
    """An actor on the node."""

    def call(self) -> int:
        """Answer at once."""
        return 1

    def send(self) -> bytes:
        """Answer with a large object."""
        return b"x" * OBJECT_BYTES


def round_of(home: Path, *, encrypted: bool) -> dict[str, float]:
    """One round; this process becomes a driver of that cluster."""
    began = time.monotonic()
    head = start_head(home, encrypted=encrypted)
    provider = LocalProvider(home, head.ray_address)
    try:
        wait_until_reachable(home, head, 120.0)
        head_s = time.monotonic() - began
        connect(home, head.ray_address)
        began = time.monotonic()
        provider.create(NodeRequest(node_id="node_bench", pool="bench", resources={"CPU": 1.0}))
        pause = threading.Event()
        while "node_bench" not in RayMembership().observe():
            pause.wait(0.05)
        return {"head_s": head_s, "node_s": time.monotonic() - began, **_calls()}
    finally:
        ray.shutdown()
        provider.kill("node_bench")
        provider.delete("node_bench")
        stop_head(home, grace_s=0)


def _calls() -> dict[str, float]:
    actor = ray.remote(Answering).options(num_cpus=1, label_selector={"remora-node": "node_bench"}).remote()
    ray.get(actor.call.remote())
    call_s, send_s = [], []
    for _ in range(BATCHES):
        began = time.perf_counter()
        for _ in range(CALLS):
            ray.get(actor.call.remote())
        call_s.append((time.perf_counter() - began) / CALLS)
        began = time.perf_counter()
        ray.get(actor.send.remote())
        send_s.append(time.perf_counter() - began)
    return {"call_us": min(call_s) * 1e6, "mb_per_s": OBJECT_BYTES / 1e6 / min(send_s)}


def best_of(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The best of each figure."""
    return {
        name: round((max if name == "mb_per_s" else min)(one[name] for one in rounds), 2)
        for name in rounds[0]
    }


def main() -> None:
    """Run the rounds in processes of their own: one process has one Ray cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", choices=("on", "off"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="remora-bench-") as folder:
        home = Path(folder, "home")
        if chosen.one:
            print(json.dumps(round_of(home, encrypted=chosen.one == "on")))
            return
        found: dict[str, list[dict[str, float]]] = {"off": [], "on": []}
        for number in range(chosen.rounds):
            for mode, results in found.items():
                words = [sys.executable, "-m", "benchmarks.ray_tls", "--one", mode]
                environment = process_environment(Path(folder, f"{mode}{number}"))
                said = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE).stdout
                results.append(json.loads(said.splitlines()[-1]))
    print(json.dumps({f"tls_{mode}": best_of(results) for mode, results in found.items()}))


if __name__ == "__main__":
    main()
