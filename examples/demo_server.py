"""The service on a machine of its own: installed, upgraded under a job, its head killed, restored, its secret replaced.

`make demo-server` runs it, with supervisord in place of systemd: head, drivers' node, two processes of the API and two
controllers are services of their own.  The last line it prints is one JSON object; it exits with 0 only when
everything it promises held.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from examples.demo import START_S, DemoFailed, check, end, processes_of, wait_for
from remora import Client
from remora.errors import RemoraError
from remora.free_ports import free_port
from remora.states import EndReason, JobState, NodeState
from remora.views import Job
from trainers.driver_protocol import PROTOCOL

ROOT = Path(__file__).resolve().parents[1]
#: What a wheel is built of.
SOURCES = (
    "remora",
    "service",
    "cluster",
    "trainers",
    "examples",
    "deploy",
    "pyproject.toml",
    "README.md",
    "LICENSE",
)
NODES = 2
#: Address of this machine at which the head listens; Ray takes 127.0.0.1 for the address of the machine's network.
HEAD = "127.0.0.83"
#: Seconds that a job may take here.
PATIENCE_S = 900.0
PROCESSES_OF_THE_API = 2
#: Asks a head with the secret of its environment, and how that exits where it is refused.
REFUSED = 3
ASK = f"""
import sys
from ray._raylet import GcsClient
from ray.exceptions import RaySystemError
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", b"remora", timeout=30)
except Exception as error:
    sys.exit({REFUSED} if "nauthenticated" in str(error) or "uthentication" in str(error) else str(error))
"""


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


def build(folder: Path, version: str = "", protocol: int = PROTOCOL) -> Path:
    """A wheel of this checkout, with another version if that is given, whose drivers speak that protocol."""
    source = folder / "source"
    source.mkdir(parents=True)
    for name in SOURCES:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(path, source / name)
    if version:
        project = source / "pyproject.toml"
        project.write_text(project.read_text().replace('version = "0.1.0"', f'version = "{version}"', 1))
    numbers = source / "trainers" / "driver_protocol.py"
    said = numbers.read_text()
    check(said.count(f"\nPROTOCOL = {PROTOCOL}\n") == 1, f"{numbers} does not say its number once")
    numbers.write_text(said.replace(f"\nPROTOCOL = {PROTOCOL}\n", f"\nPROTOCOL = {protocol}\n"))
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
    shutil.rmtree(source)
    (wheel,) = folder.glob("*.whl")
    return wheel


class Machine:
    """One installation, and the process that runs its processes."""

    #: Releases use the packages of this environment, so that none is downloaded.
    packages = ("--packages-of", sys.executable)

    def __init__(self, prefix: Path, console: Console) -> None:
        self._prefix = prefix
        self._console = console
        self._port = _free_ports(PROCESSES_OF_THE_API)
        self._head = f"{HEAD}:{free_port(HEAD)}"

    def install(self, wheel: Path) -> None:
        """From the wheel, by the command of this checkout."""
        given = ["--supervisor", "supervisord", "--port", str(self._port), "--head", self._head]
        self._call([sys.executable, "-P", "-m", "service.installation"], "install", "--wheel", str(wheel),
                   *given, *self.packages)  # fmt: skip
        settings = self._prefix / "etc" / "remora.env"
        settings.write_text(f"REMORA_NODES={NODES}\nREMORA_NODE_CPUS=2\n")

    def release(self) -> str:
        """The one in force."""
        return (self._prefix / "current").readlink().name

    def has_drivers_of(self, release: str) -> bool:
        """The drivers' node of a release runs."""
        wanted = f"remora-part=drivers-{release}"
        return any(
            wanted in " ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])
        )

    def command(self, *words: str) -> str:
        """By the command of the release in force; returns what it prints."""
        return self._call([str(self._prefix / "current" / "bin" / "remora-server")], *words)

    def status(self) -> list[str]:
        """A line for each process, which ends with its release."""
        return self.command("status").strip().splitlines()[1:]

    def secret(self) -> str:
        """That of the cluster now."""
        return (self._prefix / "state" / "ray.token").read_text()

    def takes(self, secret: str) -> bool:
        """The head answers to that secret."""
        from cluster.local.environment import process_environment

        environment = process_environment(self._prefix / "state", RAY_AUTH_TOKEN=secret)
        environment.pop("RAY_AUTH_TOKEN_PATH")
        asked = subprocess.run(
            [sys.executable, "-P", "-c", ASK, self._head], env=environment, capture_output=True, text=True
        )
        check(asked.returncode in (0, REFUSED), f"the head cannot be asked: {asked.stderr[-500:]}")
        return asked.returncode == 0

    def _call(self, command: list[str], *words: str) -> str:
        done = subprocess.run(
            [*command, *words, "--prefix", str(self._prefix)],
            env={**os.environ, "PYTHONPATH": str(ROOT) if "-m" in command else ""},
            cwd="/",
            capture_output=True,
            text=True,
            check=True,
        )
        self._console.print(done.stdout.strip(), style="dim", highlight=False)
        return done.stdout

    @contextlib.contextmanager
    def running(self) -> Iterator[list[str]]:
        """From the start of all processes to the end of the last; yields the addresses of the API."""
        python = self._prefix / "current" / "bin" / "python"
        configuration = self._prefix / "units" / "supervisord.conf"
        supervisord = subprocess.Popen(
            [python, "-m", "supervisor.supervisord", "-c", configuration],
            cwd="/",
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        urls = [f"http://127.0.0.1:{self._port + number}" for number in range(PROCESSES_OF_THE_API)]
        try:
            wait_for(lambda: all(answers(url) for url in urls), START_S, "the API did not start")
            yield urls
        finally:
            end(supervisord)
            # Nodes go on without their controller, as they should.
            self._end_nodes()

    def _end_nodes(self) -> None:
        from service.embedded.parts import end_cluster

        end_cluster(self._prefix / "state")

    def lose_head(self) -> float:
        """Kill all processes of the head; seconds until it listens again."""
        port = f"--port={self._head.rpartition(':')[2]}"
        head = next(
            process
            for process in psutil.process_iter(["cmdline"])
            if {"--head", port} <= set(process.info["cmdline"] or ())
        )
        began = time.monotonic()
        os.killpg(head.pid, signal.SIGKILL)
        wait_for(lambda: not self._listens(), START_S, "the head did not end")
        wait_for(self._listens, START_S, "the head did not start again")
        return time.monotonic() - began

    def _listens(self) -> bool:
        host, _, port = self._head.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
            return True
        return False


class Watch:
    """Asks the API all the time, one process after the other, and knows the longest time without an answer."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.longest_s = 0.0

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _ask(self) -> None:
        answered = time.monotonic()
        while not self._is_over.wait(0.02):
            if any(answers(url) for url in self._urls):
                now = time.monotonic()
                self.longest_s, answered = max(self.longest_s, now - answered), now


def answers(url: str) -> bool:
    """Whether a process of the API answers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"{url}/healthz", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _free_ports(count: int) -> int:
    """The first of `count` consecutive ports that are free."""
    while True:
        first = free_port("127.0.0.1")
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first


if __name__ == "__main__":
    sys.exit(main())
