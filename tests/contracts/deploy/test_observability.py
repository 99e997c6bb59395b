"""`deploy/observability`: what Prometheus and its checker take, against the numbers that the API really gives."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import uvicorn
import yaml

from remora.free_ports import free_port
from service.api.app import create_app
from service.settings import Settings
from service.store.database import Database
from service.store.leases import take
from service.store.migrate import migrate
from tests.needed import is_missing

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "deploy" / "observability"
#: Names that Prometheus makes itself of a counter or a histogram.
ENDINGS = re.compile(r"_(total|bucket|sum|count|created)$")


def program(name: str) -> str:
    """`prometheus` itself, or `promtool`, which is installed with it."""
    found = shutil.which("prometheus")
    if found is None:
        is_missing("Prometheus checks the alerts: apt-get install prometheus")
    return str(Path(found).with_name(name))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of an API with one job and a controller's lease."""
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    database = Database(settings.database)
    migrate(database)
    database.transact(lambda connection: take(connection, None, "controller", "test", time.time()))
    database.close()
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(settings), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        httpx2.post(f"{url}/v1/jobs", json={"name": "a", "command": ["true"]}).raise_for_status()
        yield url
    finally:
        server.should_exit = True
        thread.join()
        listening.close()


def test_every_alert_fires_when_it_should_and_not_before() -> None:
    rules = ROOT / "tests" / "contracts" / "deploy" / "alert_rules.yml"
    done = subprocess.run([program("promtool"), "test", "rules", str(rules)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    tested = set(re.findall(r"Remora\w+", rules.read_text()))
    assert tested == {rule["alert"] for rule in alerts()}


def test_the_configuration_is_one_that_prometheus_takes() -> None:
    words = [program("promtool"), "check", "config", str(FOLDER / "prometheus.yml")]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_alerts_and_dashboard_ask_for_numbers_that_there_are(service: str) -> None:
    given = set(re.findall(r"^# TYPE (\w+) ", httpx2.get(f"{service}/metrics").text, re.MULTILINE))
    given = {ENDINGS.sub("", name) for name in given}
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    asked = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    asked += [rule["expr"] for rule in alerts()]
    names = {ENDINGS.sub("", name) for text in asked for name in re.findall(r"remora_\w+", text)}
    assert names <= given
    described = (ROOT / "docs" / "api.md").read_text()
    for name in given - {"remora_http_requests", "remora_http_request_duration_seconds"}:
        assert f"`{name}" in described, name


def test_a_real_prometheus_reads_the_api_and_evaluates_the_alerts(service: str, tmp_path: Path) -> None:
    port = free_port("127.0.0.1")
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "200ms", "evaluation_interval": "200ms"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [service.removeprefix("http://")]
    shutil.copy(FOLDER / "alerts.yml", tmp_path)
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    words = [
        program("prometheus"),
        f"--config.file={tmp_path / 'prometheus.yml'}",
        f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(words, stdout=log, stderr=log) as process:
        try:
            found = asked(port, 'remora_jobs{state="queued"}')
            assert found["value"][1] == "1"
            rules = httpx2.get(f"http://127.0.0.1:{port}/api/v1/rules").json()["data"]["groups"]
            assert {rule["health"] for group in rules for rule in group["rules"]} <= {"ok", "unknown"}
        finally:
            process.terminate()
            process.wait(timeout=30)


def asked(port: int, query: str) -> Any:
    """The first sample of a query, once there is one."""
    deadline, pause = time.monotonic() + 60, threading.Event()
    while time.monotonic() < deadline:
        try:
            answer = httpx2.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query})
            if answer.status_code == 200 and (found := answer.json()["data"]["result"]):
                return found[0]
        except httpx2.TransportError:
            pass
        pause.wait(0.1)
    raise AssertionError(f"Prometheus has no sample of {query}")


def alerts() -> list[dict[str, Any]]:
    groups = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]
