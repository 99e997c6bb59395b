"""The whole road on one machine: service, Ray cluster, a training job, the loss of a node, and its replacement.

`make demo`, or `remora demo`, runs it with a script that goes on in place, `make demo-restart` with one whose processes
start again.  It uses nothing but the public client, and the local provider to take a node away.  The last line it
prints is one JSON object; it exits with 0 only when everything it promises held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import psutil
import yaml
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from cluster.local.provider import LocalProvider
from remora import Client
from remora.errors import RemoraError
from remora.states import JobState, NodeState
from remora.views import Event, Job, MetricPoint

ROOT = Path(__file__).resolve().parents[1]
NODES = 3
#: Seconds that the service, and then its nodes, may take to start: seconds on a quiet machine.
START_S = 240.0
T = TypeVar("T")


class DemoFailed(Exception):
    """Something that the demo promises did not hold."""


@dataclass(frozen=True)
class Example:
    """What is trained, and what it has to reach."""

    folder: Path
    #: Name of the metric that is the result.
    metric: str
    is_good_enough: Callable[[float], bool]
    #: Share of the steps after which a node is taken away.
    loss_at: float
    #: Seconds that a recovery takes at most on a machine that does nothing else.
    recovers_within_s: float = 15.0
    #: Steps that it may repeat, if that is promised.
    repeats_at_most: int | None = None
    #: Seconds after which a recovery counts as failed; None: as the machine may be busy, that is only said.
    recovery_limit_s: float | None = None
    #: Nodes of the cluster, and so workers of the job.
    nodes: int = NODES
    #: The rank whose node is taken away; None: any.
    lost_rank: int | None = None
    #: What is run instead of the command of its job.
    command: str | None = None


EXAMPLES = {
    "digits": Example(ROOT / "examples/digits", "test_accuracy", lambda share: share >= 0.95, 0.15),
    "elastic": Example(
        ROOT / "examples/elastic", "test_accuracy", lambda share: share >= 0.95, 0.15, 2.0, repeats_at_most=0
    ),
    "bytegpt": Example(ROOT / "examples/bytegpt", "bits_per_byte", lambda bits: bits < 5.0, 0.25),
}


@dataclass
class Seen:
    """What was observed while the job ran."""

    events: list[Event] = field(default_factory=list)
    lost_node: str | None = None
    lost_at: float | None = None
    replaced_at: float | None = None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--example", choices=sorted(EXAMPLES), default="elastic")
    parser.add_argument("--home", type=Path, default=Path(".demo"), help="made new; stays for you to look at")
    parser.add_argument("--recovery-limit", type=float, help="seconds in which it has to recover")
    parser.add_argument("--command", help="run this instead of the command of the example's job")
    arguments = parser.parse_args()
    console = Console()
    home = arguments.home.resolve()
    example = replace(
        EXAMPLES[arguments.example], recovery_limit_s=arguments.recovery_limit, command=arguments.command
    )
    try:
        with embedded_service(home, console) as server, Client(server) as client:
            result = run(client, example, home, console)
            (job,) = client.jobs()
            show_page(console, f"{server}/#/jobs/{job.id}")
        left = processes_of(home)
        check(not left, f"processes were left behind: {left}")
    except (DemoFailed, RemoraError) as error:
        console.print(f"[red]The demo failed:[/red] {error}\nLogs lie in {home / 'logs'}.")
        return 1
    print(json.dumps(result))
    return 0


def show_page(console: Console, address: str) -> None:
    """Say where the job's page is; with KEEP=1 in the environment it stays until Ctrl-C."""
    stays = bool(os.environ.get("KEEP"))
    note = "it stays until you press Ctrl-C" if stays else "KEEP=1 make demo keeps it open"
    console.print(f"page            {address} ({note})", soft_wrap=True, highlight=False)
    if stays:
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()


@contextlib.contextmanager
def embedded_service(home: Path, console: Console, nodes: int = NODES) -> Iterator[str]:
    """`remora up`, from its start to the end of its last process; yields the API's address."""
    with remora_up(home, console, "--nodes", str(nodes)) as up:
        with console.status("The service and the head of the Ray cluster start ..."):
            server = wait_for(lambda: read_address(home, up), START_S, "the service did not start")
        # Where clients find the token of a service that asks for one.
        os.environ["REMORA_HOME"] = str(home)
        with Client(server) as client, console.status(f"{nodes} nodes join the cluster ..."):
            wait_for(
                lambda: len(ready_nodes(client)) == nodes, START_S, f"{nodes} nodes did not become ready"
            )
        console.print(f"Service at {server}, a Ray head and {nodes} nodes run.")
        yield server


@contextlib.contextmanager
def remora_up(home: Path, console: Console, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A running `remora up` in a new folder; it has ended afterwards."""
    remora = str(Path(sys.executable).with_name("remora"))
    if home.exists():
        check(
            is_of_a_demo(home), f"{home} has files that are not of a demo: choose another folder with --home"
        )
        # A demo that was interrupted may still run there, and must not lose its folder.
        subprocess.run([remora, "down", "--home", str(home)], check=True, capture_output=True)
        shutil.rmtree(home)
    home.mkdir(parents=True)
    with (home / "up.log").open("wb") as log:
        up = subprocess.Popen(
            [remora, "up", "--home", str(home), "--port", "0", *options],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield up
    finally:
        with console.status("Everything is ended ..."):
            end(up)


def is_of_a_demo(home: Path) -> bool:
    """A demo may remove this folder: it made it, or there is nothing in it."""
    return home.is_dir() and ((home / "up.log").is_file() or not any(home.iterdir()))


def run(client: Client, example: Example, home: Path, console: Console) -> dict[str, Any]:
    """Submit the job, take a node away while it trains, watch it recover, and check the result."""
    job = client.submit(spec_of(example))
    console.print(f"Submitted {job.id} ({job.name}) with workers: {{min: 1, max: {example.nodes}}}.")
    job, seen = watch(client, job, example, home, console)
    result = summary(client, job, example, seen)
    print_timeline(console, example, job, seen, result)
    verify(example, result, seen)
    return result


def spec_of(example: Example) -> dict[str, Any]:
    """The specification of the example's job."""
    spec = yaml.safe_load((example.folder / "job.yaml").read_text())
    return {**spec, "code": str(example.folder), "command": example.command or spec["command"]}


def watch(client: Client, job: Job, example: Example, home: Path, console: Console) -> tuple[Job, Seen]:
    """Follow a job to its end, with its events, and take a node away; returns the job that has succeeded."""
    seen = Seen()
    watcher = threading.Thread(target=watch_events, args=(client.server.url, job.id, seen), daemon=True)
    watcher.start()
    job = watch_training(client, job, example, home, seen, console)
    watcher.join(timeout=30)
    check(job.state is JobState.SUCCEEDED, f"the job ended {job.state}: {job.message}")
    return job, seen


def watch_training(
    client: Client, job: Job, example: Example, home: Path, seen: Seen, console: Console
) -> Job:
    """Show the progress bar; take a node away at the right time; return the ended job."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]}"),
        TextColumn("[bold]{task.fields[workers]} workers"),
        TimeElapsedColumn(),
        console=console,
    )
    bar = progress.add_task("training", total=None, loss="-", workers=0)
    loss, workers = "-", 0
    with Live(progress, console=console, refresh_per_second=8):
        while not job.terminal:
            time.sleep(0.2)  # the rate at which a person is shown news, not a wait for anything
            job = client.job(job.id)
            if job.step is not None:
                points = client.metrics(job.id, after_step=max(0, job.step - 5))
                loss = f"{points[-1].values.get('loss') or 0:.4f}" if points else loss
            workers = job.world_size or workers  # an ended job has none: those of its end are shown
            progress.update(bar, total=job.total_steps, completed=job.step or 0, loss=loss, workers=workers)
            if seen.lost_at is None and is_time_for_loss(job, example):
                seen.lost_node = node_to_lose(client, job, example)
                address = (home / "ray.address").read_text().strip()
                seen.lost_at = time.time()
                LocalProvider(home, address).kill(seen.lost_node)
                progress.console.print(f"[red]SIGKILL[/red] to every process of {seen.lost_node}")
            if seen.lost_at is not None and seen.replaced_at is None:
                ready = ready_nodes(client)
                if len(ready) == example.nodes and seen.lost_node not in ready:
                    seen.replaced_at = time.time()
    return job


def is_time_for_loss(job: Job, example: Example) -> bool:
    return (
        job.step is not None
        and job.total_steps is not None
        and job.checkpoint_step is not None
        and job.world_size == example.nodes
        and job.step >= example.loss_at * job.total_steps
    )


def node_to_lose(client: Client, job: Job, example: Example) -> str:
    """The node that is taken away."""
    if example.lost_rank is None:
        return ready_nodes(client)[1]
    asked = {"REMORA_JOB_ID": job.id, "RANK": str(example.lost_rank)}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, KeyError):
            found = process.environ()
            if asked.items() <= found.items():
                return psutil.Process(int(found["REMORA_SUPERVISOR"])).environ()["REMORA_NODE_ID"]
    raise DemoFailed(f"no process of rank {example.lost_rank} was found")


def watch_events(server: str, job_id: str, seen: Seen) -> None:
    with Client(server) as client:
        for event in client.events(job_id, follow=True):
            seen.events.append(event)


def summary(client: Client, job: Job, example: Example, seen: Seen) -> dict[str, Any]:
    """The facts of the run, as the last line prints them."""
    points: list[MetricPoint] = client.metrics(job.id)
    results = [point.values[example.metric] for point in points if example.metric in point.values]
    check(bool(results), f"the job never reported {example.metric}")
    kinds = ("worker_group.started", "worker_group.regrouped")
    groups = [e.data["world_size"] for e in seen.events if e.kind in kinds]
    resumed = [e for e in seen.events if e.kind == "training.resumed"]
    checkpoints = client.checkpoints(job.id)
    check(bool(checkpoints), "the job kept no checkpoint")
    steps = [point.step for point in points]
    check(steps == list(range(1, len(steps) + 1)), "the steps of the metrics are not 1, 2, 3, ...")
    recovery_s = resumed[0].at - seen.lost_at if resumed and seen.lost_at else None
    return {
        "accuracy" if example.metric == "test_accuracy" else example.metric: results[-1],
        "steps": len(steps),
        "repeated_steps": job.repeated_steps,
        "recovery_s": None if recovery_s is None else round(recovery_s, 2),
        "world_sizes": groups,
        "attempts": job.attempt,
        "checkpoint": checkpoints[-1].location,
    }


def print_timeline(console: Console, example: Example, job: Job, seen: Seen, result: dict[str, Any]) -> None:
    start = seen.events[0].at
    rows = [(event.at, event.kind, event.message) for event in seen.events if is_worth_showing(event)]
    if seen.lost_at is not None:
        rows.append((seen.lost_at, "demo.kill", f"SIGKILL to every process of {seen.lost_node}."))
    if seen.replaced_at is not None:
        rows.append((seen.replaced_at, "demo.replaced", "The provider has replaced the node."))
    table = Table("seconds", "event", "what happened", title=f"Timeline of {job.id}")
    for at, kind, message in sorted(rows):
        table.add_row(f"{at - start:.1f}", kind, message)
    console.print(table)
    facts = Table.grid(padding=(0, 2))
    facts.add_row("steps done", str(result["steps"]))
    facts.add_row("steps repeated", str(result["repeated_steps"]))
    facts.add_row("seconds lost", f"{job.lost_s:.1f}")
    metric = next(iter(result))
    facts.add_row(metric.replace("_", " "), f"{result[metric]:.4f}")
    console.print(facts)
    console.print(f"checkpoint      {result['checkpoint']}", soft_wrap=True, highlight=False)
    took_s, usual_s = result["recovery_s"], example.recovers_within_s
    if took_s is not None and took_s >= usual_s:
        console.print(
            f"[yellow]The recovery took {took_s} s.[/yellow] "
            f"It takes less than {usual_s:g} s on a machine that does nothing else."
        )


def is_worth_showing(event: Event) -> bool:
    return not event.kind.startswith("checkpoint.") or event.kind == "checkpoint.damaged"


def verify(example: Example, result: dict[str, Any], seen: Seen) -> None:
    """Everything the demo promises."""
    metric = "accuracy" if example.metric == "test_accuracy" else example.metric
    check(example.is_good_enough(result[metric]), f"{metric} is only {result[metric]}")
    check(seen.lost_at is not None, "no node was taken away")
    first, *later = result["world_sizes"]
    # A node that is replaced before the workers that are left have started again is with them from the beginning.
    check(
        first == example.nodes and bool(later) and set(later) <= {example.nodes - 1, example.nodes},
        f"the workers were {result['world_sizes']}",
    )
    check(example.nodes in later, f"it did not grow back: {result['world_sizes']}")
    recovery_s = result["recovery_s"]
    check(recovery_s is not None, "no new step was seen after the loss")
    limit_s = example.recovery_limit_s
    check(limit_s is None or recovery_s < limit_s, f"recovery took {recovery_s} s, {limit_s} s or more")
    repeated, most = result["repeated_steps"], example.repeats_at_most
    check(most is None or repeated <= most, f"{repeated} steps were repeated")
    check(result["attempts"] == 1, f"it took {result['attempts']} attempts")
    check(Path(result["checkpoint"]).is_dir(), "the last checkpoint is not there")


def check(holds: bool, otherwise: str) -> None:
    if not holds:
        raise DemoFailed(otherwise)


def read_address(home: Path, up: subprocess.Popen[bytes]) -> str | None:
    if up.poll() is not None:
        raise DemoFailed(f"`remora up` ended: {(home / 'up.log').read_text()[-500:]}")
    file = home / "api.url"
    return file.read_text().strip() if file.exists() else None


def ready_nodes(client: Client) -> list[str]:
    return [node.id for node in client.nodes() if node.state is NodeState.READY]


def wait_for(look: Callable[[], T], timeout_s: float, otherwise: str) -> T:
    give_up_at = time.monotonic() + timeout_s
    while not (found := look()):
        if time.monotonic() > give_up_at:
            raise DemoFailed(f"{otherwise} within {timeout_s} s")
        time.sleep(0.1)
    return found


def end(up: subprocess.Popen[bytes]) -> None:
    up.send_signal(signal.SIGTERM)
    try:
        up.wait(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(up.pid, signal.SIGKILL)
        raise DemoFailed("`remora up` did not end within 60 s") from None


def processes_of(home: Path) -> list[str]:
    """Processes whose command line or environment names this home, but for this one and those that started it."""
    found, own = [], {os.getpid(), *(one.pid for one in psutil.Process().parents())}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid in own or process.status() == psutil.STATUS_ZOMBIE:
                continue
            named = [*process.cmdline(), *process.environ().values()]
            if any(str(home) in text for text in named):
                found.append(f"{process.pid} {' '.join(process.cmdline())[:80]}")
    return found


if __name__ == "__main__":
    sys.exit(main())
