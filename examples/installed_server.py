"""An installation of the service on this machine, which `examples/demo_server.py` shows: its wheel, its processes.

supervisord takes the place of systemd.
"""

from __future__ import annotations

import contextlib
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

import psutil
from rich.console import Console

from examples.demo import START_S, check, end, wait_for
from remora.free_ports import free_port
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
