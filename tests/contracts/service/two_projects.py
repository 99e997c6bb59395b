"""A service that asks for tokens, with the same objects in two projects and tokens for every mix of roles there."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from remora.roles import Role
from remora.states import NodeState
from service import first_operator
from service.api.app import create_app
from service.queue import lifecycle
from service.queue.lifecycle import NodeDecision
from service.queue.rows import NewEvent, NodeRow
from service.settings import Settings
from service.store import jobs, nodes
from service.store.database import Database
from service.store.ids import new_id
from service.store.ingest import ingest
from tests.service_fakes import hold_lease, records

PROJECTS = ("red", "blue")
#: None: no role at all.
ROLES = (None, "viewer", "submitter", "admin")
COMMAND = "python train.py"


@dataclass
class Objects:
    """What one project has."""

    project: str
    #: A succeeded job with logs, metrics, a checkpoint, an output and a model, and one that waits.
    done: str = ""
    queued: str = ""
    array: str = ""
    schedule: str = ""
    bundle: str = ""
    model: str = ""
    #: A token with a role in it.
    token: str = ""
    #: An operator's, of all of its jobs.
    alert: str = ""


@dataclass
class Service:
    """The service, its objects by project, and tokens by the roles in both projects."""

    client: TestClient
    database: Database
    settings: Settings
    operator: str
    #: By the roles in `PROJECTS`; "operator" and "outsider" (a role in a third project).
    tokens: dict[Any, str] = field(default_factory=dict)
    objects: dict[str, Objects] = field(default_factory=dict)
    node: str = ""
    drill: str = ""

    def ask(self, who: str | None, method: str, path: str, **options: Any) -> Any:
        """The answer to a request with this token, or without one."""
        headers = {
            **options.pop("headers", {}),
            **({} if who is None else {"Authorization": f"Bearer {who}"}),
        }
        # The proof of a request is what is given here, and no session that an earlier one began.
        self.client.cookies.clear()
        return self.client.request(method, path, headers=headers, **options)

    def made(self, method: str, path: str, **options: Any) -> Any:
        """The body of an operator's request that succeeds."""
        answer = self.ask(self.operator, method, path, **options)
        assert answer.status_code < 300, answer.text
        return answer.json()

    def token(self, grants: dict[str, str], **fields: Any) -> str:
        """The text of a new token."""
        return str(
            self.made("POST", "/v1/tokens", json={"name": "test", "grants": grants, **fields})["token"]
        )

    def submit(self, project: str, **fields: Any) -> str:
        """The id of a new job of the project, submitted by an operator."""
        return str(
            self.made("POST", "/v1/jobs", json={"command": COMMAND, "project": project, **fields})["id"]
        )

    def audit(self) -> list[dict[str, Any]]:
        """All of it, newest first."""
        found: list[dict[str, Any]] = self.made("GET", "/v1/audit", params={"limit": 1000})["items"]
        return found


def routes_of(client: TestClient) -> list[APIRoute]:
    """All routes of the API; the only other one is the description of it."""
    parts = [getattr(one, "original_router", None) for one in client.app.routes]  # type: ignore[attr-defined]
    alone = [one.path for one, part in zip(client.app.routes, parts, strict=True) if part is None]  # type: ignore[attr-defined]
    assert alone == ["/openapi.json"]
    found = [route for part in parts if part is not None for route in part.routes]
    assert found
    assert all(isinstance(one, APIRoute) for one in found)
    return found


def packed(text: str) -> tuple[str, bytes]:
    """A code bundle and its digest."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(zipfile.ZipInfo("train.py"), text)
    content = buffer.getvalue()
    return f"sha256:{hashlib.sha256(content).hexdigest()}", content


@contextmanager
def service_of(database: Database, url: str, home: Path, **settings: Any) -> Iterator[Service]:
    """A service with authentication, without objects."""
    made = Settings(
        **{"home": home, "database_url": url, "authentication": "required", "shells": True, **settings}
    )
    home.mkdir(parents=True, exist_ok=True)
    operator = first_operator.ensure(database, home, 1_700_000_000.0).read_text().strip()
    with TestClient(create_app(made), base_url="http://127.0.0.1") as client:
        yield Service(client, database, made, operator, {"operator": operator})


@contextmanager
def two_projects(database: Database, url: str, home: Path) -> Iterator[Service]:
    """The same with all objects and tokens."""
    with service_of(database, url, home) as service:
        for roles in product(ROLES, repeat=len(PROJECTS)):
            grants = {
                project: role for project, role in zip(PROJECTS, roles, strict=True) if role is not None
            }
            if grants:
                service.tokens[roles] = service.token(grants)
        service.tokens["outsider"] = service.token({"green": "admin"})
        for project in PROJECTS:
            service.objects[project] = _objects(service, project)
        _cluster(service)
        yield service


def _objects(service: Service, project: str) -> Objects:
    found = Objects(project)
    found.bundle, content = packed(f"# of {project}")
    service.made("PUT", f"/v1/bundles/{found.bundle}", content=content)
    found.model = f"model-{project}"
    outputs = {"outputs": {"weights": {"model": found.model}}}
    found.done = service.submit(project, code=found.bundle, labels={"of": project}, **outputs)
    _train(service, found.done)
    found.queued = service.submit(project)
    array = {"command": COMMAND, "project": project, "array": {"grid": {"lr": [1, 2]}}}
    found.array = service.made("POST", "/v1/arrays", json=array)["id"]
    schedule = {"command": COMMAND, "project": project, "schedule": {"cron": "0 3 * * *"}}
    found.schedule = service.made("POST", "/v1/schedules", json=schedule)["id"]
    about = {"project": project, "jobs": "all", "kinds": ["job_ended"], "webhook": "https://example.com/x"}
    found.alert = service.made("POST", "/v1/alerts", json=about)["id"]
    wanted = {"name": f"of {project}", "grants": {project: Role.VIEWER}}
    found.token = service.made("POST", "/v1/tokens", json=wanted)["id"]
    service.made("PUT", f"/v1/grants/{project}/user:someone", json={"role": "viewer"})
    return found


def _train(service: Service, job_id: str) -> None:
    """The job's attempt, as its driver reports it."""
    folder = service.settings.home / "storage/jobs" / job_id
    (folder / "outputs/v0").mkdir(parents=True)
    (folder / "outputs/v0/w.pt").write_bytes(b"weights")
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint/w.pt").write_bytes(b"state")
    file = {"size_bytes": 7, "sha256": hashlib.sha256(b"weights").hexdigest(), "stored": "v0/w.pt"}
    checkpoint = {"step": 4, "world_size": 1, "committed_at": 1001.0, "size_bytes": 5}
    checkpoint |= {"location": str(folder / "checkpoint"), "files": {"w.pt": 5}}
    reported: list[tuple[str, dict[str, Any]]] = [
        ("log", {"rank": 0, "stream": "stdout", "text": f"a secret of {job_id}"}),
        ("metric", {"step": 1, "world_size": 1, "values": {"loss": 0.5}}),
        ("checkpoint", checkpoint),
        (
            "output",
            {"location": str(folder / "outputs"), "committed_at": 1001.0, "files": {"weights/w.pt": file}},
        ),
        ("ended", {"end_reason": "completed", "exit_code": 0}),
    ]

    def work(connection: sa.Connection) -> None:
        lease = hold_lease(connection)
        job = jobs.lock_job(connection, job_id)
        assert job is not None
        decision = lifecycle.start_attempt(job, new_id("att", 1000.0), 1000.0)
        jobs.save(connection, job, decision)
        assert decision.attempt is not None
        ingest(connection, lease, decision.attempt.id, records(*reported), 1002.0)

    service.database.transact(work)


def _cluster(service: Service) -> None:
    """A node whose sentences name a job of each project, and a drill of it."""
    named = " and ".join(one.queued for one in service.objects.values())
    service.node = new_id("node", 1000.0)
    row = NodeRow(
        id=service.node,
        pool="local",
        created_at=1000.0,
        state=NodeState.READY,
        resources={},
        message=f"kept for {named}",
    )
    event = NewEvent(at=1000.0, kind="node.requested", message=f"bought for {named}")
    service.database.transact(lambda connection: nodes.insert_node(connection, NodeDecision(row, (event,))))
    asked = {"json": {"silent": True}}
    service.drill = service.made("POST", f"/v1/nodes/{service.node}/drill", **asked)["id"]
