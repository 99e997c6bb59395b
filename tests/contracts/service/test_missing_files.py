"""What a restored database names and the storage does not have is said, job by job, in bounded memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.spec.spec import JobSpec
from remora.states import JobState
from service.installation.layout import Layout
from service.installation.missing_files import Missing, Named, Report, missing_steps, report, sentence
from service.queue import lifecycle
from service.store import checkpoints, jobs, tables
from service.store.bundles import bundle_name
from service.store.database import Database
from tests.service_fakes import job_row
from tests.unit.trainers.outputs_of_jobs import put_outputs
from trainers.checkpoints.catalog import Catalog
from trainers.checkpoints.manifest import MANIFEST_NAME, Manifest, ShardFile
from trainers.storage import Storage

pytestmark = pytest.mark.postgresql_in_soak
CODE = f"sha256:{'c' * 64}"


class Installed:
    """A database with jobs, and the storage with their files."""

    def __init__(self, folder: Path, database: Database, url: str) -> None:
        self.database = database
        self.layout = Layout(folder)
        self.layout.settings.parent.mkdir(parents=True)
        self.layout.settings.write_text(f"REMORA_DATABASE_URL={url}\n")
        self.storage = Storage(self.layout.home / "storage")
        self.storage.write_bytes(bundle_name(CODE), b"code")

    def job(self, *steps: int, ended: bool = False, outputs: Mapping[str, str] | None = None) -> str:
        """A job with checkpoints of these steps and these outputs, all of them in the storage."""
        spec = JobSpec.from_mapping({"command": "python train.py", "name": "digits"}).to_mapping()
        row = job_row(spec={**spec, "code": CODE})
        ids = {"job_id": row.id}
        found = [self._commit(row.id, step) for step in steps]
        if outputs:
            put_outputs(self.layout.home / "storage", row.id, outputs)
        files = {name: {"stored": f"{at:032x}/{name}"} for at, name in enumerate(outputs or {})}

        def work(connection: sa.Connection) -> None:
            jobs.insert_job(connection, lifecycle.submit(row))
            checkpoints.add(connection, [{**ids, **one} for one in found])
            if outputs:
                values = {"attempt": 1, "committed_at": 1.0, "location": "", "files": files}
                connection.execute(sa.insert(tables.outputs).values({**ids, **values}))
            if ended:
                ends = sa.update(tables.jobs).where(tables.jobs.c.id == row.id)
                connection.execute(ends.values(state=JobState.SUCCEEDED, ended_at=2.0))

        self.database.transact(work)
        return row.id

    def _commit(self, job_id: str, step: int) -> dict[str, Any]:
        file = ShardFile(name="w", size_bytes=1, sha256="0" * 64, rank=0)
        manifest = Manifest(
            job_id=job_id, step=step, attempt=1, generation=1, world_size=1, committed_at=1.0, files=(file,)
        )
        self.storage.write_bytes(f"jobs/{job_id}/checkpoints/{manifest.folder}/w", b"x")
        location = Catalog(self.storage, job_id).commit(manifest)
        row = {"step": step, "attempt": 1, "world_size": 1, "committed_at": 1.0, "size_bytes": 1}
        return {**row, "location": location, "files": {"w": 1}}

    def lose(self, job_id: str, step: int, file: str = MANIFEST_NAME) -> None:
        folder = f"jobs/{job_id}/checkpoints"
        (name,) = [one for one in self.storage.names(folder) if one.startswith(f"{step:012d}-")]
        self.storage.delete(f"{folder}/{name}/{file}")


@pytest.fixture
def installed(tmp_path: Path, database: Database, database_url: str) -> Installed:
    return Installed(tmp_path / "installed", database, database_url)


def test_a_storage_that_has_everything_is_said_to(installed: Installed) -> None:
    installed.job(10, 20, outputs={"model.pt": "m"})
    installed.job(10, ended=True, outputs={"model.pt": "m"})
    assert report(installed.layout) == ["the storage has all that the database names"]


def test_what_is_missing_is_listed_with_what_follows(installed: Installed) -> None:
    whole, back, again, over = (
        installed.job(10, 20),
        installed.job(10, 20, 30),
        installed.job(5),
        installed.job(10, 20, ended=True, outputs={"a/model.pt": "m", "b.json": "b"}),
    )
    installed.lose(back, 20)
    # Not all of it is there.
    installed.lose(back, 30, "w")
    installed.lose(again, 5)
    installed.lose(over, 10)
    installed.storage.delete(f"jobs/{over}/outputs/{0:032x}/a/model.pt")
    head, *lines = report(installed.layout)
    assert head == (
        "the storage lacks what the database names, of jobs: 3, of them checkpoints: 4, files of outputs: 1, code of"
        " jobs that have not ended: 0"
    )
    assert sorted(lines) == sorted(
        [
            f"  {back}: its checkpoints of the steps 20, 30: it goes on from step 10",
            f"  {again}: its checkpoints of the steps 5: it begins again",
            f"  {over}: its checkpoints of the steps 10; the files a/model.pt of its outputs: it has ended",
        ]
    )
    assert whole not in "".join(lines)


def test_what_a_job_replaced_since_the_backup_is_not_missed(installed: Installed) -> None:
    job_id = installed.job(10, 20, outputs={"model.pt": "m"})
    installed._commit(job_id, 40)
    installed.lose(job_id, 10)
    installed.lose(job_id, 20)
    installed.storage.delete(f"jobs/{job_id}/outputs/{0:032x}/model.pt")
    assert report(installed.layout) == ["the storage has all that the database names"]


def test_jobs_without_their_code_cannot_go_on(installed: Installed) -> None:
    stuck = sorted(installed.job() for _ in range(25))
    over = installed.job(ended=True)
    installed.storage.delete(bundle_name(CODE))
    head, *lines = report(installed.layout)
    assert head.endswith("code of jobs that have not ended: 25")
    assert lines[0] == f"  {stuck[0]}: its code {CODE[:19]}: it cannot go on"
    assert lines[20] == "and 5 more jobs"
    assert lines[21].endswith(f"{', '.join(stuck[:20])} and 5 more")
    assert len(lines) == 22
    assert over not in "".join(lines)


def test_more_jobs_than_are_read_together(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.installation.missing_files._PAGE", 2)
    lost = [installed.job(3) for _ in range(5)]
    for job_id in lost:
        installed.lose(job_id, 3)
    head, *lines = report(installed.layout)
    assert "of jobs: 5, of them checkpoints: 5," in head
    assert [line.split(":")[0].strip() for line in lines] == sorted(lost)


def test_a_storage_that_cannot_be_read_is_said(installed: Installed, monkeypatch: pytest.MonkeyPatch) -> None:
    installed.job(10)
    monkeypatch.setenv("REMORA_STORAGE_URL", "nonsense://there")
    (said,) = report(installed.layout)
    assert said.startswith("it is not known whether the storage has all that the database names: cannot open")


def test_a_job_that_goes_on_misses_nothing_older_than_its_newest() -> None:
    going = Named(job_id="job_1", is_over=False, steps=(10, 20, 30))
    assert missing_steps(going, [40]) == ()
    assert missing_steps(going, [20]) == (30,)
    assert missing_steps(going, []) == (10, 20, 30)
    assert missing_steps(Named(job_id="job_1", is_over=True, steps=(10, 20, 30)), [20]) == (10, 30)


def test_of_much_that_is_missing_the_first_is_named() -> None:
    steps = tuple(range(10, 100, 10))
    text = sentence(Missing(job_id="job_1", is_over=False, steps=steps, code=CODE))
    assert text == (
        f"  job_1: its code {CODE[:19]}; its checkpoints of the steps 10, 20, 30 and 6 more: it cannot go on"
    )
    found = Report()
    for number in range(1000):
        found.add(Missing(job_id=f"job_{number}", is_over=True, steps=(1,)))
    assert (found.jobs, found.checkpoints, len(found.lines), len(found.stuck_jobs)) == (1000, 1000, 20, 0)
