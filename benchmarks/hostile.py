"""How long `/healthz` takes while the service is sent hostile requests: `make bench-hostile`.

A service of its own on a free port of this machine; each hostile request is sent by two clients again and again, large
requests that are answered by a third one, others send headers and bodies byte by byte, hold streams that they do not
read, and open more connections than they may.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from benchmarks.hostile_requests import HostileRequest, hostile_requests, large_requests

#: Seconds that `/healthz` may take.
BOUND_S = 0.2
#: Seconds of the whole measurement, and between two looks.
LASTS_S = 30.0
LOOK_S = 0.02
_ROOT = Path(__file__).parent.parent


def run(lasts_s: float = LASTS_S) -> dict[str, Any]:
    """Answers, and seconds that `/healthz` took: `calm` without the hostile clients, `hostile` with them.

    `worst_cpu_s` is what the service itself computed during one look: where it is small and `worst_s` is not, the
    machine did something else.
    """
    with _service() as (port, service):
        calm = _looks(port, service, time.monotonic() + lasts_s / 6)
        over = threading.Event()
        answers: Counter[str] = Counter()
        requests = list(hostile_requests())
        orders = [requests, requests[7:] + requests[:7], list(large_requests())]
        clients = [threading.Thread(target=_send, args=(port, order, over, answers)) for order in orders]
        clients += [threading.Thread(target=_hold, args=(port, begin, over)) for begin in 20 * _BEGINNINGS]
        for client in clients:
            client.start()
        hostile = _looks(port, service, time.monotonic() + lasts_s)
        over.set()
        for client in clients:
            client.join()
    worst = max(took for took, _ in hostile)
    return {
        "calm": _figures(calm),
        "hostile": _figures(hostile),
        "answers": dict(sorted(answers.items())),
        "bound_s": BOUND_S,
        "failed": worst > BOUND_S,
    }


def _figures(looks: list[tuple[float, float]]) -> dict[str, float]:
    ordered = sorted(took for took, _ in looks)
    return {
        "looks": len(looks),
        "median_s": round(ordered[len(ordered) // 2], 4),
        "p99_s": round(ordered[len(ordered) * 99 // 100], 4),
        "worst_s": round(ordered[-1], 4),
        "worst_cpu_s": round(max(computed for _, computed in looks), 4),
    }


@contextlib.contextmanager
def _service() -> Iterator[tuple[int, psutil.Process]]:
    with tempfile.TemporaryDirectory(prefix="remora-hostile-") as folder:
        home = Path(folder) / "home"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REMORA_")}
        process = subprocess.Popen(
            [sys.executable, "-m", "service.api_process", "--home", str(home), "--port", "0"],
            env={**environment, "PYTHONPATH": str(_ROOT)},
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            address = home / "api.url"
            while not address.exists():
                if process.poll() is not None:
                    raise RuntimeError(f"the service ended with {process.returncode}")
                time.sleep(0.05)
            yield int(address.read_text().strip().rpartition(":")[2]), psutil.Process(process.pid)
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _looks(port: int, service: psutil.Process, until: float) -> list[tuple[float, float]]:
    """Seconds that each look took, and that the service computed meanwhile."""
    looks: list[tuple[float, float]] = []
    while time.monotonic() < until or not looks:
        before, began = service.cpu_times(), time.monotonic()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        answer.read()
        connection.close()
        took, after = time.monotonic() - began, service.cpu_times()
        if answer.status == 200:
            looks.append((took, after.user + after.system - before.user - before.system))
        time.sleep(LOOK_S)
    return looks


def _send(port: int, requests: list[HostileRequest], over: threading.Event, answers: Counter[str]) -> None:
    while not over.is_set():
        for request in requests:
            if over.is_set():
                return
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
            try:
                connection.request(
                    request.method, request.path, request.body, {"Content-Type": "application/json"}
                )
                answer = connection.getresponse()
                code = json.loads(answer.read()).get("code", "accepted")
                answers[f"{answer.status} {code}"] += 1
            except (OSError, http.client.HTTPException) as error:  # refused before it was read
                answers[type(error).__name__] += 1
            finally:
                connection.close()


#: What is sent at once; one further byte follows each second.
_BEGINNINGS = (
    b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9999\r\n\r\n{",
    b"",
)


def _hold(port: int, begin: bytes, over: threading.Event) -> None:
    while not over.is_set():
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=5) as connection,
        ):
            connection.sendall(begin)
            while not over.wait(1.0):
                connection.sendall(b"a")


def main() -> int:
    """Print one JSON document; 1 when `/healthz` took longer than it may."""
    result = run()
    print(json.dumps(result, indent=1))
    return 1 if result["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
