"""What the hostile job gets to know of the service that it attacks: all that one knows who has read the source."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import subprocess
import threading
from collections.abc import Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil

from cluster.local.folders import ClusterFolders

#: Addresses of the metadata service and of Azure's wire server, with what is said of them.
CLOUD = {"the metadata service": "169.254.169.254", "metadata of the wire server": "168.63.129.16"}
#: What the hostile job holds in memory, and for how long.
HELD_BYTES, HOLD_S = 128 << 20, 3.0
#: Seconds in which it tries every port that opens.
SCAN_S = 10.0
#: The parts of a home that a script must not read, and those that several jobs use.
_SECRET, _SHARED = (
    ("remora.db", "up.log", "operator.token", "secrets.key"),
    ("environments", "inputs", "torchinductor", "caches"),
)


class Metadata(BaseHTTPRequestHandler):
    """Answers every request with a canary."""

    canary = ""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.canary.encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def canary(kind: str) -> str:
    """A text that is to be seen nowhere else."""
    return f"canary-{kind}-{secrets.token_hex(8)}"


def emulate_metadata() -> None:
    """Answer at the addresses of a cloud's own services.  Only for a network namespace of its own."""
    for address in CLOUD.values():
        subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)
        Metadata.canary = canary("metadata")
        server = ThreadingHTTPServer((address, 80), Metadata)
        threading.Thread(target=server.serve_forever, daemon=True).start()


def hints(home: Path, url: str, job_id: str, daemon: str) -> dict[str, Any]:
    """For an attack on a service and on a job that runs there; `daemon` is the name of a process that may stay behind.

    Raises StopIteration when there is no such job.
    """
    folders = ClusterFolders(home)
    of_home = [*_processes_with(str(home))]
    raylet = next(
        one for one in of_home if _is_raylet(one) and _variable(one, "REMORA_NODE_ID").startswith("node_")
    )
    work = Path(_variable(raylet, "REMORA_WORK_DIR"))
    head_host, _, head_port = folders.address.read_text().strip().rpartition(":")
    api = urlsplit(url)
    shared = [*(work / name for name in _SHARED), work, home, home / "storage", folders.temporary]
    return {
        "token_sha256": hashlib.sha256(folders.token.read_bytes().strip()).hexdigest(),
        "own_canaries": [],
        "secrets": [
            str(path) for path in (folders.token, *(home / name for name in _SECRET), folders.address)
        ],
        "folders": [str(path) for path in (work, folders.temporary, "/tmp", "/dev/shm", "/var/tmp", home)],
        "home": str(home),
        "pids": _pids(of_home, raylet, job_id),
        "ports": {
            "the API's port": (api.hostname, api.port),
            "the head of Ray": (head_host, int(head_port)),
            **{what: (address, 80) for what, address in CLOUD.items()},
        },
        "shared": [str(path) for path in (*shared, Path.home() / ".cache" / "uv") if path.is_dir()],
        "node_uid": os.getuid(),
        "daemon": daemon,
        "shm_bytes": HELD_BYTES,
        "hold_s": HOLD_S,
        "scan_s": SCAN_S,
    }


def free_memory() -> int:
    """Bytes that are free for files in memory."""
    system = os.statvfs("/dev/shm")
    return system.f_bavail * system.f_frsize


def stolen(storage: Path, job_id: str, hint: Mapping[str, Any]) -> list[str]:
    """What a service kept of the job's outputs that was never the job's own."""
    found = []
    kept = storage / "jobs" / job_id
    for path in kept.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if hashlib.sha256(content.strip()).hexdigest() == hint["token_sha256"]:
                found.append("the Ray token is in its outputs")
            if content.startswith(b"SQLite format"):
                found.append("the database is in its outputs")
    if not list(kept.rglob("honest.txt")):
        found.append("its honest output was lost")
    return found


def left_behind(daemon: str) -> bool:
    """Whether a process of that name outlived its job."""
    return any(True for _ in _processes_with(daemon))


def _pids(of_home: Iterable[psutil.Process], raylet: psutil.Process, job_id: str) -> dict[str, int]:
    marked = [*_processes_with(f"REMORA_JOB_ID={job_id}")]
    shim = next(one for one in marked if any(word.endswith("command_shim.py") for word in _words(one)))
    parts = {"the API": "service.api_process", "the controller": "service.controller"}
    return {
        "another job's script": shim.children(recursive=True)[-1].pid,
        "another job's shim": shim.pid,
        "a supervisor": int(_variable(shim, "REMORA_SUPERVISOR")),
        "a node": raylet.pid,
        **{what: next(one.pid for one in of_home if module in _words(one)) for what, module in parts.items()},
    }


def _is_raylet(process: psutil.Process) -> bool:
    return any(word.endswith("/raylet") for word in _words(process)[:1])


def _words(process: psutil.Process) -> list[str]:
    """Its command line; [] of one that has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _variable(process: psutil.Process, name: str) -> str:
    try:
        return str(process.environ().get(name, ""))
    except psutil.Error:
        return ""


def _processes_with(text: str) -> Iterable[psutil.Process]:
    """Living processes with a text in their command line or environment."""
    for process in psutil.process_iter():
        try:
            if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
                continue
            variables = [f"{name}={value}" for name, value in process.environ().items()]
            if any(text in one for one in (*process.cmdline(), *variables)):
                yield process
        except psutil.Error:
            continue


FINDINGS = re.compile(r"FINDINGS (\[.*\])")
