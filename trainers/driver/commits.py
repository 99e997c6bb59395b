"""Commits of checkpoints whose files are all stored, beside the training that goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping

from trainers.checkpoints.catalog import Catalog, Fenced
from trainers.checkpoints.manifest import Manifest
from trainers.driver.account import Account
from trainers.driver.group import Commit, WorkerGroup
from trainers.plan import AttemptPlan
from trainers.storage import StorageError

#: Seconds that commits under way may take at the end of a worker group.
_FINISH_S = 60.0
#: Newest reports in which a checkpoint's step is looked for; it takes seconds to store, and steps milliseconds.
_SCORES_KEPT = 100_000


class Commits:
    """Commits under way; `catalog` is opened by the controller's thread before any worker starts."""

    def __init__(self, plan: AttemptPlan, account: Account, now: Callable[[], float] = time.time) -> None:
        self.catalog: Catalog
        self._plan = plan
        self._account = account
        self._now = now
        self._under_way: set[asyncio.Task[None]] = set()
        #: Values of the metric that chooses the best checkpoint, by step.
        self._scores: dict[int, float] = {}

    def score(self, step: int, values: Mapping[str, float | None]) -> None:
        """A step was reported with these metrics: one of them may say how good its checkpoint is."""
        value = values.get(self._plan.best_metric or "")
        if value is None:
            return
        self._scores.pop(step, None)
        self._scores[step] = value
        if len(self._scores) > _SCORES_KEPT:
            self._scores.pop(next(iter(self._scores)))

    def start(self, group: WorkerGroup, commit: Commit, then: Callable[[bool], None]) -> None:
        """Commit a checkpoint of that group; `then` hears whether it was."""
        task = asyncio.ensure_future(self._run(group, commit, then))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def finish(self) -> Awaitable[object]:
        """Let commits under way finish: the last checkpoint is often the best one."""
        if not self._under_way:
            return asyncio.sleep(0)
        return asyncio.wait(set(self._under_way), timeout=_FINISH_S)

    async def _run(self, group: WorkerGroup, commit: Commit, then: Callable[[bool], None]) -> None:
        manifest = Manifest(
            job_id=self._plan.job_id,
            step=commit.step,
            attempt=self._plan.attempt,
            generation=group.generation,
            world_size=group.world_size,
            committed_at=self._now(),
            files=commit.files,
            score=self._scores.get(commit.step),
        )
        mode = self._plan.best_mode if self._plan.best_metric is not None else None
        try:
            location = await asyncio.to_thread(self.catalog.commit, manifest)
            deleted = await asyncio.to_thread(self.catalog.retain, self._plan.checkpoint_keep, mode)
        except (Fenced, StorageError) as error:
            text = f"The checkpoint of step {commit.step} was not committed: {error}."
            self._account.event("checkpoint.refused", text, step=commit.step)
            then(False)
            return
        self._tell(manifest, location, deleted)
        then(True)

    def _tell(self, manifest: Manifest, location: str, deleted: list[Manifest]) -> None:
        body = {
            "step": manifest.step,
            "world_size": manifest.world_size,
            "size_bytes": manifest.size_bytes,
            "location": location,
            "files": {file.name: file.size_bytes for file in manifest.files},
            "committed_at": manifest.committed_at,
        }
        self._account.put("checkpoint", body)
        for old in deleted:
            if old.step != manifest.step:
                self._account.put("checkpoint", {"step": old.step, "deleted": True})
