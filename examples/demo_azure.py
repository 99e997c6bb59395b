"""Spot machines of Azure come, one is taken away with a notice, on-demand stands in: all on this machine.

Beside the job another Ray program asks for two nodes, gets them, ends, and they are given back.

`make demo-azure` runs it.  The cloud is an emulator of Azure's own interfaces, whose machines are processes that join
the Ray cluster; everything else is what runs on Azure.  The last line it prints is one JSON object; it exits with 0
only when everything it promises held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psutil
from rich.console import Console
from rich.table import Table

from cluster.local.environment import process_environment
from cluster.local.gcs import GcsUse
from examples.demo import (
    START_S,
    DemoFailed,
    Seen,
    check,
    is_worth_showing,
    processes_of,
    read_address,
    remora_up,
    wait_for,
    watch_events,
)
from remora import Client
from remora.errors import RemoraError
from remora.states import JobState
from remora.views import Event, Job, Node

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "examples/azure"
SIZE = "Standard_D4s_v5"
WORKERS = 3
#: Seconds in the life of a machine that the controller may see late.
UNSEEN_S = 5.0
#: Steps after which the cloud takes a machine back.
NOTICE_AT = 10


@dataclass
class Timeline(Seen):
    """What was observed while the job ran."""

    noticed_node: str | None = None
    noticed_at: float | None = None

    @property
    def groups(self) -> list[Event]:
        """What was said of each worker group that trained."""
        return [
            event for event in self.events if event.kind in ("worker_group.started", "worker_group.regrouped")
        ]

    @property
    def sizes(self) -> list[int]:
        """Numbers of workers that trained."""
        return [event.data["world_size"] for event in self.groups]


class Gang:
    """The Ray program beside the job: a process of its own that knows nothing of Remora."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process: subprocess.Popen[str] | None = None

    def begin(self) -> None:
        """Start it, unless it was started."""
        if self._process is None:
            address = (self._home / "ray.address").read_text().strip()
            with (self._home / "gang.log").open("w") as log:
                self._process = subprocess.Popen(
                    [sys.executable, str(HERE / "gang.py"), address],
                    env=process_environment(self._home),
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )

    def result(self) -> dict[str, Any]:
        """What it printed, once it has ended."""
        check(self._process is not None, "the Ray program was not started")
        assert self._process is not None
        try:
            said, _ = self._process.communicate(timeout=START_S)
        except subprocess.TimeoutExpired:
            raise DemoFailed("the Ray program did not get its nodes") from None
        check(self._process.returncode == 0, f"the Ray program failed: {self._home / 'gang.log'} says why")
        found: dict[str, Any] = json.loads(said.splitlines()[-1])
        return found

    def end(self) -> None:
        """End it if it still runs."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Cloud:
    """The control API of the emulator."""

    def __init__(self, url: str) -> None:
        self._http = httpx2.Client(base_url=url, timeout=10.0)

    def answers(self) -> bool:
        """It runs."""
        with contextlib.suppress(httpx2.TransportError):
            self.state()
            return True
        return False

    def set_capacity(self, zone: str, machines: int) -> None:
        """A zone has capacity for this number of spot machines."""
        limit = {"size": SIZE, "zone": zone, "capacity": "spot", "machines": machines}
        self._http.post("/control/knobs", json={"most_machines": [limit]}).raise_for_status()

    def notice(self, node_id: str) -> None:
        """Announce to the machine of a node by its metadata service that it is evicted in 30 s."""
        (name,) = [name for name, one in self.state()["machines"].items() if one["node"] == node_id]
        self._http.post(f"/control/machines/{name}/notice").raise_for_status()

    def state(self) -> dict[str, Any]:
        """What there is."""
        answer: dict[str, Any] = self._http.get("/control/state").raise_for_status().json()
        return answer

    def books(self) -> list[dict[str, Any]]:
        """What it bills for each machine that there was."""
        found: list[dict[str, Any]] = self._http.get("/control/books").raise_for_status().json()["machines"]
        return found

    def resources(self) -> int:
        """Machines, network interfaces and disks that exist."""
        state = self.state()
        return sum(len(state[kind]) for kind in ("machines", "interfaces", "disks"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--home", type=Path, default=ROOT / ".demo-azure", help="made new; stays for you to look at"
    )
    console, home = Console(soft_wrap=True), parser.parse_args().home.resolve()
    try:
        with emulated_azure(home, console) as (client, cloud):
            gang = Gang(home)
            try:
                result = run(client, cloud, console, GcsUse(home), gang)
            finally:
                gang.end()
        left = processes_of(home)
        check(not left, f"processes were left behind: {left}")
    except (DemoFailed, RemoraError, httpx2.HTTPError, LookupError, psutil.Error) as error:
        console.print(f"[red]The demo failed:[/red] {error}\nLogs lie in {home / 'logs'}.")
        return 1
    print(json.dumps(result))
    return 0


@contextlib.contextmanager
def emulated_azure(home: Path, console: Console) -> Iterator[tuple[Client, Cloud]]:
    """`remora up --cloud azure-emulated` with authentication, from its start to the end of its last process."""
    os.environ["REMORA_AUTHENTICATION"] = "required"
    with remora_up(home, console, "--cloud", "azure-emulated") as up:
        with console.status("The service, the head of the Ray cluster and the emulated cloud start ..."):
            server = wait_for(lambda: read_address(home, up), START_S, "the service did not start")
            file = home / "azure-emulated.json"
            wait_for(file.exists, START_S, "the emulator did not start")
            endpoint = json.loads(file.read_text())["endpoint"]
            cloud = Cloud(endpoint)
            wait_for(cloud.answers, START_S, "the emulator does not answer")
        console.print(f"Service at {server}, Azure Resource Manager at {endpoint}; there is no machine yet.")
        # Where the client finds the token of a service that asks for one.
        os.environ["REMORA_HOME"] = str(home)
        with Client(server) as client:
            yield client, cloud


def run(client: Client, cloud: Cloud, console: Console, gcs: GcsUse, gang: Gang) -> dict[str, Any]:
    """Submit the job, let the cloud have too little and take some back, and check what it cost."""
    began_at = time.time()
    cloud.set_capacity("1", WORKERS - 1)
    cloud.set_capacity("2", 0)
    policy = client.policy()
    client.apply_policy((HERE / "policies.yaml").read_text(), based_on=policy.version, author="demo")
    job = client.submit(HERE / "job.yaml")
    console.print(
        f"Submitted {job.id} for {WORKERS} workers; there is spot for {WORKERS - 1}, in one of two zones."
    )
    timeline = Timeline()
    watcher = threading.Thread(target=watch_events, args=(client.server.url, job.id, timeline), daemon=True)
    watcher.start()
    job = watch(client, cloud, job, timeline, console, gang)
    watcher.join(timeout=30)
    check(job.state is JobState.SUCCEEDED, f"the job ended {job.state}: {job.message}")
    foreign = gang.result()
    with console.status("The machines are returned ..."):
        wait_for(lambda: cloud.resources() == 0, 90, "the machines were not given back")
    nodes = client.nodes()
    print_timeline(console, job, timeline, nodes)
    result = {
        "state": job.state.value,
        "repeated_steps": job.repeated_steps,
        "preemptions": sum(1 for node in nodes if node.id == timeline.noticed_node),
        "spot_nodes": len(used(nodes, "spot")),
        "on_demand_nodes": len(used(nodes, "on-demand")),
        "foreign_nodes": len([node for node in nodes if node.id in foreign["nodes"]]),
        "foreign_wait_s": foreign["waited_s"],
        "azure_resources_left": cloud.resources(),
        "ledger": ledger(nodes),
        "accounts": accounts(client, cloud, began_at),
        "world_sizes": timeline.sizes,
        "gcs_core_share": round(gcs.share(), 3),
    }
    print_accounts(console, result["accounts"])
    verify(result, timeline)
    return result


def watch(client: Client, cloud: Cloud, job: Job, timeline: Timeline, console: Console, gang: Gang) -> Job:
    """Look on until the job has ended; give a spot machine notice once two of them train."""
    printed: set[str] = set()
    shown = 0
    while not job.terminal:
        time.sleep(0.2)  # the rate at which a person is shown news, not a wait for anything
        job = client.job(job.id)
        for node in reversed(client.nodes()):
            line = f"{node.offering} {node.state}" + (f": {node.message}" if node.message else "")
            if f"{node.id} {line}" not in printed and node.state in (
                "requested",
                "ready",
                "draining",
                "gone",
            ):
                printed.add(f"{node.id} {line}")
                console.print(f"  {node.id[-6:]}  {line}", highlight=False)
        if job.world_size not in (0, shown):
            shown = job.world_size
            console.print(f"[bold]{job.world_size} workers[/bold] at step {job.step or 0}")
        is_time = (
            timeline.noticed_at is None and job.world_size >= WORKERS - 1 and (job.step or 0) >= NOTICE_AT
        )
        if timeline.noticed_at is not None and job.world_size == WORKERS:
            gang.begin()  # once nothing of the job depends any more on how fast machines start
        if is_time:
            timeline.noticed_node = next(n.id for n in used(client.nodes(), "spot") if n.state == "ready")
            # What is taken back is sold to another customer.
            cloud.set_capacity("1", WORKERS - 2)
            cloud.notice(timeline.noticed_node)
            timeline.noticed_at = time.time()
            console.print(f"[red]Preempt[/red] in 30 s: {timeline.noticed_node}")
    return job


def used(nodes: list[Node], capacity: str) -> list[Node]:
    """Nodes of the job of a capacity type that became ready."""
    mine = [node for node in nodes if node.pool == "cpu" and node.ready_at is not None]
    return [node for node in mine if node.offering.endswith(f"/{capacity}")]


def ledger(nodes: list[Node]) -> dict[str, dict[str, float]]:
    """Seconds and USD of machines by capacity type, from the request for each to its end."""
    lines: dict[str, dict[str, float]] = {}
    for capacity in ("spot", "on-demand"):
        mine = used(nodes, capacity)
        seconds = sum((node.ended_at or time.time()) - node.created_at for node in mine)
        usd = sum(
            ((node.ended_at or time.time()) - node.created_at) / 3600 * node.price_per_hour for node in mine
        )
        lines[capacity] = {"vm_seconds": round(seconds, 1), "usd": round(usd, 6)}
    return lines


def accounts(client: Client, cloud: Cloud, began_at: float) -> dict[str, Any]:
    """USD by cause as the service accounts for them, their sum, and what the cloud's books say."""
    found = client.costs(by=["cause"], since=began_at)
    books = cloud.books()
    return {
        "usd_by_cause": {line.of["cause"]: line.cost for line in found.lines},
        "usd": found.cost,
        "billed_usd": round(sum(one["cost"] for one in books), 6),
        # What machines cost in the seconds between what happens to them and the controller's look at them.
        "unseen_usd": round(sum(one["price_per_hour"] for one in books) * UNSEEN_S / 3600.0, 6),
        "sentence": found.sentence,
    }


def print_accounts(console: Console, found: dict[str, Any]) -> None:
    table = Table("cause", "USD", title=f"Accounts; the cloud's books say {found['billed_usd']:.6f} USD")
    for cause, usd in found["usd_by_cause"].items():
        table.add_row(cause.replace("_", " "), f"{usd:.6f}")
    table.add_row("total", f"{found['usd']:.6f}")
    console.print(table)
    console.print(found["sentence"])


def print_timeline(console: Console, job: Job, timeline: Timeline, nodes: list[Node]) -> None:
    start = timeline.events[0].at
    rows = [(event.at, event.kind, event.message) for event in timeline.events if is_worth_showing(event)]
    if timeline.noticed_at is not None:
        rows.append(
            (timeline.noticed_at, "demo.notice", f"The cloud gives notice to {timeline.noticed_node}.")
        )
    table = Table("seconds", "event", "what happened", title=f"Timeline of {job.id}")
    for at, kind, message in sorted(rows):
        table.add_row(f"{at - start:.1f}", kind, message)
    console.print(table)
    money = Table("capacity", "machines", "VM-seconds", "USD", title="Ledger")
    for capacity, line in ledger(nodes).items():
        money.add_row(
            capacity, str(len(used(nodes, capacity))), f"{line['vm_seconds']:.1f}", f"{line['usd']:.6f}"
        )
    console.print(money)


def verify(result: dict[str, Any], timeline: Timeline) -> None:
    """Everything the demo promises."""
    sizes = timeline.sizes
    # On a busy machine another worker may join in the moment in which this one leaves, and the size stays.
    later = [
        group.data["world_size"] for group in timeline.groups if group.at >= (timeline.noticed_at or 0.0)
    ]
    check(result["preemptions"] == 1, "no machine was taken back")
    money = result["accounts"]
    off = abs(money["usd"] - money["billed_usd"])
    check(
        off <= 0.005 * money["billed_usd"] + money["unseen_usd"],
        f"accounts of {money['usd']:.6f} USD are no bill of {money['billed_usd']:.6f} USD",
    )
    check(result["repeated_steps"] == 0, f"{result['repeated_steps']} steps were repeated")
    check(result["spot_nodes"] == WORKERS - 1, f"{result['spot_nodes']} spot machines were used")
    check(result["on_demand_nodes"] > 0, "on-demand did not stand in for spot")
    check(WORKERS - 1 in sizes, f"it did not begin with what there was: {sizes}")
    check(bool(later) and later[0] < WORKERS, f"it did not go on without the machine: {sizes}")
    check(sizes[-1] == WORKERS, f"it did not grow to {WORKERS} workers: {sizes}")
    check(result["foreign_nodes"] == 2, f"the Ray program had {result['foreign_nodes']} nodes")
    check(result["azure_resources_left"] == 0, "machines, interfaces or disks were left in Azure")


if __name__ == "__main__":
    sys.exit(main())
