"""Runs `hostile_job.py` as a job of a real service beside another job, and prints what it found, as JSON.

    python -m tests.e2e.hostile_stage FOLDER ISOLATION

To be run in a network namespace of its own (`unshare -n`): the service installs its rules for connections there, and
the metadata service is an emulated one, at its real address on the loopback interface.  FOLDER is an empty one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil

from cluster.local.folders import ClusterFolders
from remora.states import JobState
from tests.e2e.embedded import API, CONTROLLER, Embedded
from tests.e2e.processes import PATIENCE_S, JobProcesses, processes_with, until

#: Addresses of the metadata service and of Azure's wire server, with what is said of them.
CLOUD = {"the metadata service": "169.254.169.254", "metadata of the wire server": "168.63.129.16"}
VICTIM = """
import os, pathlib, signal, sys, tempfile
for folder in (".", os.environ["REMORA_OUTPUTS_DIR"], tempfile.gettempdir(), "/tmp", "/dev/shm"):
    try:
        pathlib.Path(folder, "canary-of-victim").write_text(os.environ["VICTIM"])
    except OSError as error:
        print(folder, error)
print("READY", flush=True)
signal.pause()
"""
#: The smallest memory for files of a command, and what the hostile job holds of it.
SHM_BYTES, HELD_BYTES = 256 << 20, 128 << 20


class Metadata(BaseHTTPRequestHandler):
    """Answers every request with a canary."""

    canary = ""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.canary.encode())

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


def canary(kind: str) -> str:
    return f"canary-{kind}-{secrets.token_hex(8)}"


def main(folder: Path, isolation: str) -> dict[str, Any]:
    """The report of the hostile job, with what can be seen of it from outside."""
    for address in CLOUD.values():
        subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)
        Metadata.canary = canary("metadata")
        server = ThreadingHTTPServer((address, 80), Metadata)
        threading.Thread(target=server.serve_forever, daemon=True).start()
    variables = {
        "REMORA_ISOLATION": isolation,
        "REMORA_NETWORK_RULES": "true",
        "REMORA_NODE_CPUS": "2",
        "REMORA_MAX_SHM_BYTES": str(SHM_BYTES),
        "REMORA_WARM_MODULES": "json",
        "AZURE_CLIENT_SECRET": canary("service"),
        "SITE_CREDENTIALS": canary("site"),
    }
    service = Embedded(folder / "home", nodes=1, variables=variables)
    try:
        service.start()
        return _attack(service, folder)
    finally:
        service.end()


def _attack(service: Embedded, folder: Path) -> dict[str, Any]:
    (folder / "victim").mkdir()
    (folder / "victim" / "victim.py").write_text(VICTIM)
    (folder / "hostile").mkdir()
    source = Path(__file__).with_name("hostile_job.py")
    (folder / "hostile" / "train.py").write_text(source.read_text())
    secret = canary("victim")
    spec = {
        "command": ["python", "victim.py", canary("argument")],
        "environment": {"variables": {"VICTIM": secret}},
    }
    victim = _submit(service, folder, "victim", spec)
    with service.client() as client:
        until(lambda: "READY" in _log(service, victim), "the other job runs")
        daemon = f"daemon-{secrets.token_hex(4)}"
        hints = _hints(service, victim, daemon)
        variables = {"HOSTILE_HINTS": json.dumps(hints)}
        spec = {"command": ["python", "train.py"], "environment": {"variables": variables}}
        hostile = _submit(service, folder, "hostile", spec)
        free = _free()
        until(lambda: "HOLDING" in _log(service, hostile) or client.job(hostile).terminal, "it has tried all")
        taken = free - _free()
        done = client.wait(hostile, PATIENCE_S)
        findings = _report(_log(service, hostile))
        if done.state is not JobState.SUCCEEDED:
            findings.append(f"it ended as {done.state.value}: {done.message}")
        if taken > HELD_BYTES // 2:
            findings.append("it takes the memory of other jobs")
        if processes_with(daemon):
            findings.append("a process outlived it")
        findings += _stolen(service, hostile, hints)
        findings += [] if client.job(victim).state is JobState.RUNNING else ["the other job was ended"]
        client.cancel(victim)
        client.wait(victim, PATIENCE_S)
    return {"findings": findings, "log": _log(service, hostile).splitlines()[-20:]}


def _submit(service: Embedded, folder: Path, name: str, spec: dict[str, Any]) -> str:
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"name": name, "code": str(folder / name), **spec}))
    answer = service.remora("submit", "-q", str(file), folder=folder)
    assert answer.code == 0, answer.err
    return answer.out.strip()


def _log(service: Embedded, job: str) -> str:
    return service.remora("logs", job).out


def _report(log: str) -> list[str]:
    lines = [line.partition("FINDINGS ")[2] for line in log.splitlines() if "FINDINGS " in line]
    return list(json.loads(lines[-1])) if lines else ["it made no report"]


def _free() -> int:
    system = os.statvfs("/dev/shm")
    return system.f_bavail * system.f_frsize


def _hints(service: Embedded, victim: str, daemon: str) -> dict[str, Any]:
    """All that one knows who has read the source."""
    home, folders = service.home, ClusterFolders(service.home)
    running = JobProcesses(home, victim)
    raylets = [one for one in processes_with(str(home)) if one.name() == "raylet"]
    (raylet,) = [one for one in raylets if one.environ().get("REMORA_NODE_ID", "").startswith("node_")]
    work = Path(raylet.environ()["REMORA_WORK_DIR"])
    head_host, _, head_port = folders.address.read_text().strip().rpartition(":")
    pids = {
        "another job's script": running.child(0).pid,
        "another job's shim": running.child(0).parent().pid,
        "a supervisor": running.supervisor(0).pid,
        "a node": raylet.pid,
        "the API": _pid(service.part(API)),
        "the controller": _pid(service.part(CONTROLLER)),
    }
    shared = [work / name for name in ("environments", "inputs", "torchinductor")]
    shared += [work, home, home / "storage", folders.temporary, Path.home() / ".cache" / "uv"]
    return {
        "token_sha256": hashlib.sha256(folders.token.read_bytes().strip()).hexdigest(),
        "own_canaries": [],
        "secrets": [
            str(path) for path in (folders.token, home / "remora.db", home / "up.log", folders.address)
        ],
        "folders": [str(path) for path in (work, folders.temporary, "/tmp", "/dev/shm", "/var/tmp", home)],
        "home": str(home),
        "pids": pids,
        "ports": {
            "the API's port": ("127.0.0.1", int(service.url.rpartition(":")[2])),
            "the head of Ray": (head_host, int(head_port)),
            **{what: (address, 80) for what, address in CLOUD.items()},
        },
        "shared": [str(path) for path in shared if path.is_dir()],
        "node_uid": os.getuid(),
        "daemon": daemon,
        "shm_bytes": HELD_BYTES,
        "hold_s": 3.0,
    }


def _pid(process: psutil.Process | None) -> int:
    assert process is not None
    return process.pid


def _stolen(service: Embedded, job: str, hints: dict[str, Any]) -> list[str]:
    """What the service kept of the job's outputs that was never its own."""
    found = []
    stored = service.home / "storage" / "jobs" / job
    for path in stored.rglob("*"):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            if hashlib.sha256(content.strip()).hexdigest() == hints["token_sha256"]:
                found.append("the Ray token is in its outputs")
            if content.startswith(b"SQLite format"):
                found.append("the database is in its outputs")
    if not list(stored.rglob("honest.txt")):
        found.append("its honest output was lost")
    return found


if __name__ == "__main__":
    print("REPORT " + json.dumps(main(Path(sys.argv[1]), sys.argv[2])), flush=True)
