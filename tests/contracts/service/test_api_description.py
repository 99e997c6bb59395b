"""Schemathesis asks a running API what its own description allows, and what it forbids, as several principals."""

from __future__ import annotations

import re
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvicorn

from remora import Client
from service import first_operator
from service.api.app import create_app
from service.settings import Settings
from service.store.database import Database
from service.store.migrate import migrate
from tests.needed import is_missing

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / ".venv-schemathesis/bin/schemathesis"
#: Not `positive_data_acceptance`: which cursors and bodies are good is not in the description.
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
CHECKS += (
    ",response_headers_conformance,use_after_free,missing_required_header,unsupported_method,ignored_auth"
)
#: It answers 503 where no controller runs; and a version may be called `check`, so that more methods are possible.
LEFT_OUT = "^/(readyz|v1/policies/check)$"


@pytest.fixture(scope="module")
def program() -> Path:
    made = subprocess.run(["make", "schemathesis"], cwd=ROOT, capture_output=True, text=True)
    if made.returncode != 0:
        is_missing(f"Schemathesis cannot be installed here: {made.stderr.strip().splitlines()[-1:]}")
    return PROGRAM


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Address of an API that asks for tokens, and the token of an operator, which may be revoked in a test."""
    settings = Settings(home=tmp_path / "home", authentication="required", max_requests_per_s=0.0)
    settings.home.mkdir()
    database = Database(settings.database)
    migrate(database)
    token = first_operator.ensure(database, settings.home, 1000.0).read_text().strip()
    database.close()
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(settings), log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    yield f"http://127.0.0.1:{listening.getsockname()[1]}", token
    server.should_exit = True
    thread.join()
    listening.close()


def token_of(service: tuple[str, str], role: str) -> str | None:
    """The token of a principal with a role in one project; None: without any."""
    url, token = service
    with Client(url, token=token) as client:
        match role:
            case "operator":
                return token
            case "none":
                return None
            case _:
                made = client.create_token(role, {"vision": role})
                client.submit({"command": "python train.py", "project": "vision"})
                return made.token


def ask(program: Path, url: str, token: str | None, examples: int, folder: Path) -> str:
    """What Schemathesis prints; fails where it found anything."""
    words = ["run", f"{url}/openapi.json", "--checks", CHECKS, "--exclude-path-regex", LEFT_OUT]
    words += ["--max-examples", str(examples), "--seed", "1", "--no-color", "--suppress-health-check", "all"]
    if token is not None:
        words += ["--header", f"Authorization: Bearer {token}"]
    done = subprocess.run([program, *words], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:]
    return done.stdout


@pytest.mark.parametrize("role", [pytest.param("operator", marks=pytest.mark.soak), "submitter"])
def test_its_answers_are_as_described(
    program: Path, service: tuple[str, str], role: str, tmp_path: Path
) -> None:
    said = ask(program, service[0], token_of(service, role), 2, tmp_path)
    assert int(re.findall(r"(\d+) generated", said)[0]) > 300


@pytest.mark.soak
@pytest.mark.parametrize("role", ["operator", "admin", "submitter", "viewer", "none"])
def test_they_are_for_every_role_and_for_strange_requests(
    program: Path, service: tuple[str, str], role: str, tmp_path: Path
) -> None:
    ask(program, service[0], token_of(service, role), 30, tmp_path)
