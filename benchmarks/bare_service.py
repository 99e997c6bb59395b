"""The least that `POST /v1/jobs` could be: one FastAPI route that stores its body by SQLAlchemy and answers with it.

python -m benchmarks.bare_service URL PORT_FILE
"""

from __future__ import annotations

import socket
import sys
import uuid
from pathlib import Path
from typing import Any

import sqlalchemy as sa
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import event

metadata = sa.MetaData()
jobs = sa.Table(
    "bare_jobs",
    metadata,
    sa.Column("id", sa.String(40), primary_key=True),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("spec", sa.JSON, nullable=False),
)


class Spec(BaseModel):
    """What is submitted, unchecked but for its form."""

    name: str
    command: list[str]
    workers: dict[str, int]
    resources: dict[str, float]


class Job(BaseModel):
    """What is answered."""

    id: str
    name: str
    state: str
    spec: dict[str, Any]


def create_app(engine: sa.Engine) -> FastAPI:
    """One route, as tutorials write it: FastAPI runs it in a thread of its pool."""
    app = FastAPI()

    @app.post("/v1/jobs", status_code=201)
    def submit(spec: Spec) -> Job:
        job = Job(id=uuid.uuid4().hex, name=spec.name, state="queued", spec=spec.model_dump())
        with engine.begin() as connection:
            connection.execute(sa.insert(jobs).values(**job.model_dump()))
        return job

    return app


def _engine(url: str) -> sa.Engine:
    if not url.startswith("sqlite"):
        return sa.create_engine(url, pool_size=8, max_overflow=2)
    engine = sa.create_engine(url, pool_size=8, max_overflow=2, pool_timeout=60, connect_args={"timeout": 60})

    @event.listens_for(engine, "connect")
    def _connect(connection: Any, _: object) -> None:
        # As durable as ours.
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")

    return engine


def main(url: str, port_file: Path) -> None:
    """Serve until the process is ended."""
    engine = _engine(url)
    metadata.create_all(engine)
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    port_file.write_text(f"http://127.0.0.1:{listening.getsockname()[1]}\n")
    server = uvicorn.Server(uvicorn.Config(create_app(engine), log_level="warning", access_log=False))
    server.run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
