"""What the database names and the storage does not have: checkpoints, files of outputs and code of jobs.

`remora-server restore` asks, as the storage is not part of a backup.  Jobs are read a page at a time, and of what is
missing sums and the first lines are kept: memory does not grow with the jobs, and the time grows with what they have.

python -P -m service.installation.missing_files PREFIX prints it; root has it done as the user whose settings it reads.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import sqlalchemy as sa

from service.installation.databases import database_url
from service.installation.layout import InstallationProblem, Layout, layout_of
from service.queue.specification import checkpoint_store_of, code_of
from service.settings import Settings, read_settings
from service.storage_locations import UnknownStore, open_storage, url_of
from service.store.bundles import bundle_name
from service.store.database import Database
from service.store.failures import StoreError
from service.store.tables import checkpoints, jobs, outputs
from trainers.checkpoints.catalog import Catalog
from trainers.outputs.catalog import OutputsCatalog, OutputsDamaged
from trainers.storage import Storage, StorageError

#: Jobs that are read together, jobs that are named, and steps and files that are named of each.
_PAGE, _NAMED, _FIRST = 100, 20, 3


@dataclass(frozen=True, kw_only=True)
class Named:
    """What the database names of one job."""

    job_id: str
    is_over: bool
    #: Digest of its code, which a job that is over needs no more.
    code: str | None = None
    store: str | None = None
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Missing:
    """What of it the storage does not have."""

    job_id: str
    is_over: bool
    code: str | None = None
    steps: tuple[int, ...] = ()
    #: The newest step whose checkpoint is there.
    newest: int | None = None
    files: tuple[str, ...] = ()

    @property
    def cannot_go_on(self) -> bool:
        """The job has not ended, and none of its attempts could begin."""
        return self.code is not None and not self.is_over


@dataclass
class Report:
    """Sums over all jobs, and the first of them."""

    jobs: int = 0
    checkpoints: int = 0
    files: int = 0
    #: Jobs that cannot go on, and the first of them.
    stuck: int = 0
    stuck_jobs: list[str] = field(default_factory=list)
    #: One for each of the first jobs.
    lines: list[str] = field(default_factory=list)

    def add(self, missing: Missing) -> None:
        """Count one more job."""
        self.jobs += 1
        self.checkpoints += len(missing.steps)
        self.files += len(missing.files)
        if missing.cannot_go_on:
            self.stuck += 1
            self.stuck_jobs += [missing.job_id][: _NAMED - len(self.stuck_jobs)]
        self.lines += [sentence(missing)][: _NAMED - len(self.lines)]

    def text(self) -> list[str]:
        """For people, a line each (pure)."""
        if not self.jobs:
            return ["the storage has all that the database names"]
        head = (
            f"the storage lacks what the database names, of jobs: {self.jobs}, of them checkpoints: {self.checkpoints},"
            f" files of outputs: {self.files}, code of jobs that have not ended: {self.stuck}"
        )
        more = [f"and {self.jobs - len(self.lines)} more jobs"] if self.jobs > len(self.lines) else []
        return [head, *self.lines, *more, *([_stuck(self.stuck, self.stuck_jobs)] if self.stuck else [])]


def missing_steps(named: Named, there: Sequence[int]) -> tuple[int, ...]:
    """Which of its checkpoints are missing (pure).

    A job that goes on may have deleted older ones than its newest since the backup, as it does with each new one.
    """
    least = max(there, default=-1) if not named.is_over else -1
    return tuple(step for step in named.steps if step not in there and step > least)


def sentence(missing: Missing) -> str:
    """What is missing of a job, and what follows from it (pure)."""
    parts = []
    if missing.code is not None:
        parts.append(f"its code {missing.code[:19]}")
    if missing.steps:
        parts.append(f"its checkpoints of the steps {_first([str(step) for step in missing.steps])}")
    if missing.files:
        parts.append(f"the files {_first(missing.files)} of its outputs")
    if missing.is_over:
        effect = "it has ended"
    elif missing.cannot_go_on:
        effect = "it cannot go on"
    elif not missing.steps:
        effect = "it goes on"
    else:
        effect = f"it goes on from step {missing.newest}" if missing.newest is not None else "it begins again"
    return f"  {missing.job_id}: {'; '.join(parts)}: {effect}"


def report(layout: Layout) -> list[str]:
    """What the storage lacks, in lines for people; the settings of the installation are in the environment.

    Where database or storage cannot be read, that is the last line.
    """
    settings = read_settings({"home": layout.home})
    if settings is None:
        return ["it is not known whether the storage has all that the database names: the settings are wrong"]
    found = Report()
    try:
        with contextlib.closing(Database(database_url(layout, layout.read_settings()))) as database:
            for missing in _all_missing(database, settings):
                found.add(missing)
    except (StoreError, StorageError, sa.exc.SQLAlchemyError) as error:
        lines = found.text() if found.jobs else []
        return [*lines, f"it is not known whether the storage has all that the database names: {error}"[:500]]
    return found.text()


def _all_missing(database: Database, settings: Settings) -> Iterator[Missing]:
    looking = _Looking(database, settings)
    last = ""
    while page := database.query(lambda connection, after=last: _named(connection, after)):  # type: ignore[misc]
        for named in page:
            if (missing := looking.missing(named)) is not None:
                yield missing
        last = page[-1].job_id


def _named(connection: sa.Connection, after: str) -> list[Named]:
    """The next page of the jobs whose files were not deleted by their age."""
    columns = (jobs.c.id, jobs.c.ended_at, jobs.c.spec)
    kept = sa.select(*columns).where(jobs.c.id > after, jobs.c.pruned_at.is_(None))
    rows = connection.execute(kept.order_by(jobs.c.id).limit(_PAGE)).all()
    steps: dict[str, list[int]] = {row.id: [] for row in rows}
    listed = sa.select(checkpoints.c.job_id, checkpoints.c.step).where(checkpoints.c.job_id.in_(steps))
    for row in connection.execute(listed.order_by(checkpoints.c.step)):
        steps[row.job_id].append(row.step)
    return [
        Named(
            job_id=row.id,
            is_over=row.ended_at is not None,
            code=code_of(row.spec) if row.ended_at is None else None,
            store=checkpoint_store_of(row.spec),
            steps=tuple(steps[row.id]),
        )
        for row in rows
    ]


class _Looking:
    """Looks into the storages of the service, each of which is opened once."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._storages: dict[str, Storage] = {}
        # Jobs of one folder of code come one after the other.
        self._has_code = lru_cache(1000)(self._look_for_code)

    def missing(self, named: Named) -> Missing | None:
        """What the storage lacks of a job; None: nothing.  Raises StorageError."""
        code = named.code if named.code is not None and not self._has_code(named.code) else None
        storage = self._storage(named.store)
        # Of a store that is not named any more, nothing is there for the service.
        there = [] if storage is None or not named.steps else Catalog(storage, named.job_id).listed()
        found = Missing(
            job_id=named.job_id,
            is_over=named.is_over,
            code=code,
            steps=missing_steps(named, [one.step for one in there]),
            newest=max((one.step for one in there), default=None),
            files=self._files(named, storage),
        )
        return found if found.code is not None or found.steps or found.files else None

    def _files(self, named: Named, storage: Storage | None) -> tuple[str, ...]:
        """Names of files of its outputs that are missing."""
        stored = self._database.query(
            lambda connection: connection.execute(
                sa.select(outputs.c.files).where(outputs.c.job_id == named.job_id)
            ).scalar()
        )
        if not stored:
            return ()
        if storage is None:
            return tuple(sorted(stored))
        catalog = OutputsCatalog(storage, named.job_id)
        if not named.is_over and _has_outputs(catalog):
            return ()  # its driver has committed others since, and reports them
        sizes = storage.sizes(catalog.folder)
        return tuple(sorted(name for name, one in stored.items() if sizes.get(one["stored"]) is None))

    def _look_for_code(self, digest: str) -> bool:
        storage = self._storage(None)
        return storage is not None and storage.exists(bundle_name(digest))

    def _storage(self, store: str | None) -> Storage | None:
        try:
            url = url_of(self._settings, store)
        except UnknownStore:
            return None
        if url not in self._storages:
            self._storages[url] = open_storage(self._settings, url)
        return self._storages[url]


def _has_outputs(catalog: OutputsCatalog) -> bool:
    try:
        return bool(catalog.newest().newest.files)
    except OutputsDamaged:
        return False


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _FIRST} more" if len(names) > _FIRST else ""
    return f"{', '.join(names[:_FIRST])}{more}"


def _stuck(count: int, first: Sequence[str]) -> str:
    more = f" and {count - len(first)} more" if count > len(first) else ""
    return f"these jobs cannot go on without their code; cancel them and submit them again: {', '.join(first)}{more}"


def main(words: Sequence[str]) -> None:
    """Print what the storage of the installation in a folder lacks."""
    layout = layout_of(Path(words[0]))
    # Libraries of databases and of storages read settings of their own.
    os.environ.update(layout.read_settings())
    for line in report(layout):
        print(line, flush=True)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (InstallationProblem, OSError) as error:
        sys.exit(str(error))
