"""python -m benchmarks.page_peers ray|mlflow COUNT FOLDER: a peer of `benchmarks/page.py` with that number of entries.

It runs in the environment of `make page-peers`.  Prints `{"address": URL}` once the peer answers, and ends it when
its own standard input ends.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from remora.free_ports import free_port

_PATIENCE_S = 120.0


def _ray(count: int, folder: Path) -> tuple[list[str], str, Callable[[], None]]:
    """Command, address, and what adds the jobs to Ray's own store of them."""
    gcs, dashboard, client = (free_port() for _ in range(3))
    command = [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=1"),
        *(f"--port={gcs}", f"--dashboard-port={dashboard}", f"--ray-client-server-port={client}"),
        *("--include-dashboard=true", "--disable-usage-stats", "--object-store-memory=100000000"),
        *("--node-ip-address=127.0.0.1", f"--temp-dir={folder}"),
    ]

    def add() -> None:
        from ray._raylet import GcsClient  # type: ignore[attr-defined]
        from ray.dashboard.modules.job.common import JobInfoStorageClient
        from ray.job_submission import JobInfo, JobStatus

        store = JobInfoStorageClient(GcsClient(address=f"127.0.0.1:{gcs}"))

        async def put() -> None:
            for number in range(count):
                info = JobInfo(
                    JobStatus.SUCCEEDED,
                    entrypoint="python train.py",
                    start_time=1000 * number,
                    end_time=1000 * number + 1,
                )
                await store.put_info(f"raysubmit_{number:016d}", info)

        asyncio.run(put())

    return command, f"http://127.0.0.1:{dashboard}", add


def _mlflow(count: int, folder: Path) -> tuple[list[str], str, Callable[[], None]]:
    """Command, address, and nothing to add: the runs are stored before."""
    from mlflow.entities import RunStatus
    from mlflow.store.tracking.dbmodels.models import SqlRun, SqlTag
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    url = f"sqlite:///{folder}/mlflow.db"
    store = SqlAlchemyStore(url, str(folder))
    first = store.create_run("0", "user", 0, [], "run 0")
    store.update_run_info(first.info.run_id, RunStatus.FINISHED, 1, None)
    # Its API commits each call: the other thousands are rows like those that it has made.
    with store.ManagedSessionMaker() as session:
        run = _columns(session.query(SqlRun).one())
        tags = [_columns(tag) for tag in session.query(SqlTag)]
        runs = [{**run, **_run(number)} for number in range(1, count)]
        session.bulk_insert_mappings(SqlRun, runs)
        named = [{**tag, "run_uuid": one["run_uuid"], **_tag(tag, one)} for one in runs for tag in tags]
        session.bulk_insert_mappings(SqlTag, named)
    port = free_port()
    words = ["-m", "mlflow", "server", "--backend-store-uri", url, "--host", "127.0.0.1", "--port", str(port)]
    return [sys.executable, *words, "--workers", "1"], f"http://127.0.0.1:{port}", lambda: None


def _columns(row: Any) -> dict[str, Any]:
    """Of a row of MLflow's own models, by the names of the attributes."""
    return {one.key: getattr(row, one.key) for one in row.__mapper__.column_attrs}


def _run(number: int) -> dict[str, Any]:
    """What a run has of its own."""
    times = {"start_time": 1000 * number, "end_time": 1000 * number + 1}
    return {"run_uuid": f"{number:032x}", "name": f"run {number}", **times}


def _tag(tag: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """The name of a run is also a tag of it."""
    return {"value": run["name"]} if tag["value"] == "run 0" else {}


_PEERS: Mapping[str, Callable[[int, Path], tuple[list[str], str, Callable[[], None]]]] = {
    "ray": _ray,
    "mlflow": _mlflow,
}


def main(name: str, count: int, folder: Path) -> int:
    """The exit status of the process."""
    command, address, add = _PEERS[name](count, folder)
    with (folder / "peer.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        try:
            _until_it_answers(address, process)
            add()
            print(json.dumps({"address": address}), flush=True)
            sys.stdin.read()
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    return 0


def _until_it_answers(address: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(address, timeout=5):  # noqa: S310 - its own address
                return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.2)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])))
