"""Deletes jobs as their owners asked: first their files, which may take long, then their rows."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

from remora.process_log import about
from service.loops.tick import Tick
from service.queue.rows import JobRow
from service.settings import Settings
from service.storage_locations import UnknownStore, open_storage, url_of
from service.store import deletion
from service.store.pruning import ROWS
from trainers.storage import Storage

log = logging.getLogger(__name__)

#: Seconds before a storage that failed is asked again.
RETRY_S = 60.0


def urls_of(job: JobRow, settings: Settings) -> list[str]:
    """Storages in which the job may have files."""
    urls = [settings.storage]
    try:
        urls.append(url_of(settings, job.facts.checkpoint_store))
    except UnknownStore as error:
        log.warning(
            "files of %s may stay where they are: %s",
            job.id,
            error,
            extra=about(job=job.id, project=job.project),
        )
    return list(dict.fromkeys(urls))


def delete_files(job_id: str, urls: list[str], opened: Callable[[str], Storage]) -> None:
    """Delete all files of a job from storages that `opened` opens; fine when there are none.  Raises StorageError."""
    for url in urls:
        opened(url).delete(f"jobs/{job_id}")


class Deletion:
    """Used by one thread, which starts another one for the files, so that no loop waits for a storage.

    The owner's request stands in the job's row: a controller that dies anywhere here leaves it to the next one.
    """

    def __init__(
        self,
        monotonic: Callable[[], float],
        delete: Callable[[str, list[str], Callable[[str], Storage]], None] = delete_files,
    ) -> None:
        self._monotonic = monotonic
        self._delete = delete
        self._under_way: tuple[str, Future[None]] | None = None
        #: Files of this job are gone, and rows of it are left.
        self._emptied: str | None = None
        self._again_at = -math.inf

    def step(self, tick: Tick) -> None:
        """Do one step's worth.  Raises Fenced."""
        if self._emptied is not None:
            self._forget(tick, self._emptied)
        elif self._under_way is not None:
            self._look(*self._under_way)
        elif self._monotonic() >= self._again_at:
            job = tick.load(deletion.next_going)
            if job is not None:
                tick.check()
                self._under_way = (job.id, self._begin(job.id, tick.settings, urls_of(job, tick.settings)))

    def wait(self, timeout_s: float) -> None:
        """Wait until the files under way are gone."""
        if self._under_way is not None:
            self._under_way[1].exception(timeout_s)

    def _look(self, job_id: str, under_way: Future[None]) -> None:
        if not under_way.done():
            return
        self._under_way = None
        error = under_way.exception()
        if error is None:
            self._emptied = job_id
            return
        log.warning(
            "the files of %s cannot be deleted, it is tried again: %s", job_id, error, extra=about(job=job_id)
        )
        self._again_at = self._monotonic() + RETRY_S

    def _forget(self, tick: Tick, job_id: str) -> None:
        if tick.apply(partial(deletion.forget, job_id=job_id, now=tick.now, most=ROWS)):
            log.info("%s was deleted as its owner asked", job_id, extra=about(job=job_id))
            self._emptied = None

    def _begin(self, job_id: str, settings: Settings, urls: list[str]) -> Future[None]:
        future: Future[None] = Future()

        def work() -> None:
            try:
                self._delete(job_id, urls, partial(open_storage, settings))
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        # The end of the process does not wait for a storage either.
        threading.Thread(target=work, name="delete-files", daemon=True).start()
        return future
