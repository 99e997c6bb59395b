"""The outputs of an attempt's workers, put together and committed beside the training that goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from trainers.checkpoints.catalog import Catalog
from trainers.driver.account import Account
from trainers.outputs.catalog import OutputsCatalog, OutputsDamaged
from trainers.outputs.manifest import Changes, OutputFile, merge
from trainers.plan import AttemptPlan
from trainers.storage import StorageError

#: Seconds that a commit under way may take at the end of a worker group.
_FINISH_S = 60.0


class Outputs:
    """What the job's outputs are now; `open` is called by the controller's thread before any worker starts."""

    def __init__(self, plan: AttemptPlan, account: Account, now: Callable[[], float] = time.time) -> None:
        self._plan = plan
        self._account = account
        self._now = now
        self._catalog: OutputsCatalog
        self._checkpoints: Catalog
        #: The newest files by name, and those that are committed.
        self.files: dict[str, OutputFile] = {}
        self._committed: dict[str, OutputFile] = {}
        #: Versions of files that are not wanted any more, and may still be named by the manifest.
        self._loose: list[OutputFile] = []
        self._under_way: asyncio.Task[None] | None = None

    def open(self, catalog: OutputsCatalog, checkpoints: Catalog) -> str | None:
        """Begin with what earlier attempts left; returns why it cannot be read, if so.  Raises StorageError."""
        self._catalog, self._checkpoints = catalog, checkpoints
        try:
            self.files = self._committed = catalog.newest()
        except OutputsDamaged as error:
            return str(error)
        catalog.sweep(self.files)
        return None

    def hear(self, changes: Changes) -> None:
        """A worker has stored or removed files."""
        before = self.files
        self.files = merge(before, changes)
        known = (*before.values(), *changes.written)
        kept = {file.stored for file in self.files.values()}
        self._loose += [file for file in known if file.stored not in kept]
        if self._under_way is None or self._under_way.done():
            self._under_way = asyncio.ensure_future(self._commit())

    async def finish(self) -> None:
        """Let a commit under way finish."""
        if self._under_way is not None:
            await asyncio.wait({self._under_way}, timeout=_FINISH_S)

    async def _commit(self) -> None:
        while self.files != self._committed:
            files, loose, self._loose = self.files, self._loose, []
            try:
                if not await asyncio.to_thread(self._write, files, loose):
                    return
            except StorageError as error:
                self._account.event(
                    "attempt.outputs_refused", f"The outputs were not stored: {error}."[:1000]
                )
                return
            self._committed = files
            self._tell(files)

    def _write(self, files: dict[str, OutputFile], loose: list[OutputFile]) -> bool:
        """Commit them, and remove what they replace; False when a newer attempt writes now."""
        if self._checkpoints.is_fenced(self._plan.attempt):
            return False
        self._catalog.commit(files, self._plan.attempt, self._now())
        self._catalog.forget(loose)
        return True

    def _tell(self, files: dict[str, OutputFile]) -> None:
        body = {
            "location": self._catalog.location,
            "committed_at": self._now(),
            "files": {
                file.name: {"size_bytes": file.size_bytes, "sha256": file.sha256, "stored": file.stored}
                for file in files.values()
            },
        }
        self._account.put("output", body)
