"""The service on a machine of its own: installed, upgraded under a job, its head killed, restored, its secret replaced.

`make demo-server` runs it, with supervisord in place of systemd: head, drivers' node, two processes of the API and two
controllers are services of their own.  The last line it prints is one JSON object; it exits with 0 only when
everything it promises held.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from examples.demo import START_S, DemoFailed, check, processes_of, wait_for
from examples.installed_server import NODES, Machine, Watch, build
from remora import Client
from remora.errors import RemoraError
from remora.states import EndReason, JobState, NodeState
from remora.views import Job
from trainers.driver_protocol import PROTOCOL

ROOT = Path(__file__).resolve().parents[1]
#: Seconds that a job may take here.
PATIENCE_S = 900.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--home", type=Path, default=ROOT / ".demo-server", help="made new; stays for you to look at"
    )
    console, home = Console(), parser.parse_args().home.resolve()
    try:
        check(
            not home.exists() or is_of_this_demo(home),
            f"{home} is not a demo's; choose another folder with --home",
        )
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        result = run(home, console)
        left = processes_of(home)
        check(not left, f"processes were left behind: {left}")
    except (DemoFailed, RemoraError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", "") or ""
        console.print(f"[red]The demo failed:[/red] {error} {said}\nLogs lie in {home}/remora/state/logs.")
        return 1
    print(json.dumps(result))
    return 0


def run(home: Path, console: Console) -> dict[str, Any]:
    """Install, upgrade, lose the head, back up and restore, with jobs that train meanwhile."""
    with console.status("Two builds are made ..."):
        # Drivers of the first build speak the protocol of the release before.
        first, second = build(home / "first", protocol=PROTOCOL - 1), build(home / "second", "0.1.1")
    machine = Machine(home / "remora", console)
    machine.install(first)
    release = machine.release()
    with machine.running() as urls, Client(urls[0]) as client:
        wait_for(lambda: len(ready(client)) == NODES, START_S, f"{NODES} nodes did not become ready")
        console.print(f"Installed from {first.name}: API at {' and '.join(urls)}, {NODES} nodes.")
        jobs = [client.submit(training("undisturbed-by-all", 2, 3000, 0.04))]
        wait_for(lambda: (client.job(jobs[0].id).step or 0) > 50, PATIENCE_S, "the job did not train")
        with Watch(urls) as watch:
            machine.command("upgrade", "--wheel", str(second), *machine.packages)
        console.print(
            f"Upgraded to {second.name}; no process of the API answered for {watch.longest_s:.2f} s at most."
        )
        jobs.append(client.submit(training("after-the-upgrade", 1, 200, 0.0)))
        backup = home / "backup.tar"
        machine.command("backup", str(backup))
        restart_s = machine.lose_head()
        console.print(f"The head was killed and answers again after {restart_s:.1f} s.")
        jobs.append(client.submit(training("after-the-head", 1, 200, 0.0)))
        ended = finish(client, jobs[1:], console)
        machine.command("backup", str(home / "later.tar"))
        machine.command("restore", str(home / "later.tar"))
        change_key(client)
        console.print(
            "A backup was made and put in place, and the key of secrets replaced; the first job still trains."
        )
        ended = [*finish(client, jobs[:1], console), *ended]
        wait_for(
            lambda: not machine.has_drivers_of(release),
            START_S,
            "the drivers' node of the first release did not end with its last driver",
        )
        return {**facts(ended, watch, restart_s), **rotate(machine, client, console)}


def change_key(client: Client) -> None:
    """Have the service encrypt the secrets of projects with another key; no job is concerned."""
    client.set_secret("token", "of a demo")
    check(client.rotate_secrets().rewritten == 1, "the secret of the demo has the key that it had")


def rotate(machine: Machine, client: Client, console: Console) -> dict[str, Any]:
    """Give the cluster another secret under a job that trains and one that was paused for it; what became of both."""
    trains, waits = (
        client.submit(training(f"{name}-at-another-secret", 1, 600, 0.04)) for name in ("trains", "waits")
    )
    for job in (trains, waits):
        wait_for(
            lambda one=job: client.job(one.id).checkpoint_step is not None,
            PATIENCE_S,
            f"{job.name} saves nothing",
        )
    client.pause(waits.id)
    wait_for(lambda: client.job(waits.id).state is JobState.PAUSED, PATIENCE_S, "a job did not pause")
    old, began = machine.secret(), time.monotonic()
    machine.command("rotate", "--yes")
    rotate_s = time.monotonic() - began
    check(machine.secret() != old, "the cluster has the secret that it had")
    check(not machine.takes(old), "the head answers to the old secret")
    check(machine.takes(machine.secret()), "the head does not answer to the new secret")
    in_force = machine.release()
    wrong = [line for line in machine.status() if not line.endswith(f" {in_force}")]
    check(not wrong, f"these are not of the release in force: {wrong}")
    client.resume(waits.id)
    console.print(f"The cluster has had another secret after {rotate_s:.1f} s.")
    after = finish(client, [trains, waits], console)
    lost = [job.name for job in after if job.state is not JobState.SUCCEEDED]
    check(not lost, f"these jobs did not succeed after the cluster had another secret: {lost}")
    reasons = [
        one.end_reason for job in after for one in client.attempts(job.id) if one.end_reason is not None
    ]
    blamed = [reason for reason in reasons if reason.is_users and reason is not EndReason.COMPLETED]
    check(not blamed, f"a job was blamed for another secret: {blamed}")
    repeated, none = (job.repeated_steps or 0 for job in after)
    check(none == 0, f"{none} steps of the job that was paused were repeated")
    return {
        "rotate_s": round(rotate_s, 2),
        "rotate_repeated_steps": repeated,
        "rotate_paused_repeated_steps": none,
    }


def is_of_this_demo(home: Path) -> bool:
    """It made this folder, or there is nothing in it."""
    return home.is_dir() and ((home / "remora" / "installation.json").is_file() or not any(home.iterdir()))


def facts(jobs: list[Job], watch: Watch, restart_s: float) -> dict[str, Any]:
    """What became of the jobs."""
    lost = [job.name for job in jobs if job.state is not JobState.SUCCEEDED]
    attempts = {job.name: job.attempt for job in jobs}
    result = {
        "lost_jobs": len(lost),
        "doubled_jobs": sum(attempt > 1 for attempt in attempts.values()),
        "repeated_steps": sum(job.repeated_steps or 0 for job in jobs),
        "head_restart_s": round(restart_s, 2),
        "upgrade_pause_s": round(watch.longest_s, 2),
    }
    check(not lost, f"these jobs did not succeed: {lost}")
    check(result["doubled_jobs"] == 0, f"attempts of the jobs: {attempts}")
    check(result["repeated_steps"] == 0, f"{result['repeated_steps']} steps were repeated")
    return result


def training(name: str, workers: int, steps: int, least_step_s: float) -> dict[str, Any]:
    """The specification of a job that trains digits for `steps` steps."""
    return {
        "name": name,
        "code": str(ROOT / "examples/elastic"),
        "command": f"python train.py --steps {steps} --least-step-s {least_step_s}",
        "backend": "ddp",
        "workers": {"min": 1, "max": workers},
        "resources": {"cpus": 0.5},
        "checkpoint": {"interval": "5s", "keep": 2},
    }


def finish(client: Client, jobs: list[Job], console: Console) -> list[Job]:
    """Wait for the end of jobs."""
    with console.status(f"{', '.join(job.name for job in jobs)} ..."):
        return [
            wait_for(lambda one=job: ended(client, one), PATIENCE_S, f"{job.name} did not end")
            for job in jobs
        ]


def ended(client: Client, job: Job) -> Job | None:
    """The job once it has ended."""
    now = client.job(job.id)
    return now if now.state in (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED) else None


def ready(client: Client) -> list[str]:
    """Nodes that can take work."""
    return [node.id for node in client.nodes() if node.state is NodeState.READY]


if __name__ == "__main__":
    sys.exit(main())
