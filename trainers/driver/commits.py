"""Commits of checkpoints whose files are all stored, beside the training that goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

from trainers.checkpoints.catalog import Catalog, Damage, Fenced, Retained
from trainers.checkpoints.manifest import Manifest
from trainers.checkpoints.selection import description, youngest_of_each_step
from trainers.driver.account import Account
from trainers.driver.group import Commit, WorkerGroup
from trainers.plan import AttemptPlan
from trainers.storage import StorageError

#: Seconds that commits under way may take at the end of a worker group.
_FINISH_S = 60.0
#: Seconds before older checkpoints that the storage did not delete are deleted again: at first, and at most.
_PAUSE_S, _MAX_PAUSE_S = 5.0, 300.0
#: Newest reports in which a checkpoint's step is looked for; it takes seconds to store, and steps milliseconds.
_SCORES_KEPT = 100_000


class Commits:
    """Commits under way; `catalog` is opened by the controller's thread before any worker starts."""

    def __init__(
        self,
        plan: AttemptPlan,
        account: Account,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`now` is seconds since 1970, `clock` measures durations."""
        self.catalog: Catalog
        self._plan = plan
        self._account = account
        self._now = now
        self._under_way: set[asyncio.Task[None]] = set()
        self._clock = clock
        #: Older checkpoints may have to be deleted, and are being deleted.
        self._has_surplus = self._deletes = False
        self._again_at, self._pause_s, self._is_put_off = 0.0, _PAUSE_S, False
        #: Folders of damaged checkpoints that were reported, and of those that the job's list names, by step.
        self._damaged: set[str] = set()
        self._reported: dict[int, str] = {}
        #: Step of the newest checkpoint that this attempt has committed.
        self.newest_step: int | None = None
        #: Values of the metric that chooses the best checkpoint, by step.
        self._scores: dict[int, float] = {}

    def open(self, catalog: Catalog) -> None:
        """Begin with what earlier attempts left; called before any worker starts.  Raises StorageError.

        The list is reported again: an attempt that vanished may have committed or deleted some and not reported it.
        """
        self.catalog = catalog
        found = catalog.listed()
        self._reported = {one.step: one.folder for one in found}
        if found or self._plan.attempt > 1:
            body = [description(one, catalog.location(one)) for one in found]
            self._account.put("checkpoints", {"checkpoints": body})

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
        """Commit a checkpoint of that group; `then` is called with whether it was."""
        self._spawn(self._run(group, commit, then))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
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
            take=commit.take,
        )
        try:
            location = await asyncio.to_thread(self.catalog.commit, manifest)
        except (Fenced, StorageError, OSError) as error:
            text = f"The checkpoint of step {commit.step} was not committed: {error}."
            self._account.event("checkpoint.refused", text[:1000], step=commit.step)
            then(False)
            return
        self._report(manifest, location)
        self.newest_step = max(manifest.step, self.newest_step or 0)
        then(True)
        self._has_surplus = True
        await self._delete_surplus()

    def tick(self) -> None:
        """Try again to delete older checkpoints that the storage did not delete."""
        if self._has_surplus and not self._deletes and self._clock() >= self._again_at:
            self._spawn(self._delete_surplus())

    async def _delete_surplus(self) -> None:
        """Delete what need not be kept; the checkpoint that was just committed is committed in any case."""
        if self._deletes:
            return
        self._deletes = True
        try:
            while self._has_surplus:
                self._has_surplus = False
                failure = await self._retain()
                if failure is not None:
                    self._put_off(failure)
                    return
                self._pause_s, self._is_put_off = _PAUSE_S, False
        finally:
            self._deletes = False

    def report_damaged(self, damage: Damage, what_follows: str) -> None:
        """A checkpoint cannot be used, and what that leads to, as a sentence."""
        self._damaged.add(damage.folder)
        if damage.is_incomplete and self._reported.get(damage.step) == damage.folder:
            self._leave_out(damage.step, "damaged")
        text = f"The checkpoint of step {damage.step} cannot be used: {damage.why}. {what_follows}"
        self._account.event("checkpoint.damaged", text[:1000], step=damage.step, folder=damage.folder)

    async def _retain(self) -> str | None:
        """Retain once, and report what was deleted; returns why it is not done, if so."""
        before = dict(self._reported)
        try:
            retained = await asyncio.to_thread(self._retain_unless_fenced)
        except (StorageError, OSError) as error:
            return str(error)
        if retained is None:
            return None
        self._report_changes(before, retained)
        for damage in retained.damaged:
            if damage.folder not in self._damaged:
                self.report_damaged(damage, "It does not count as kept.")
        return retained.failure

    def _report_changes(self, before: Mapping[int, str], retained: Retained) -> None:
        """Report which checkpoints are gone that were reported before the retention began."""
        kept, deleted = {one.folder for one in retained.kept}, {one.folder for one in retained.deleted}
        others = youngest_of_each_step(retained.kept)
        for step, folder in before.items():
            # Another one of its step may have been committed meanwhile.
            if folder in kept or self._reported.get(step) != folder:
                continue
            if (other := others.get(step)) is not None:
                self._report(other, self.catalog.location(other))
            else:
                self._leave_out(step, "retention" if folder in deleted else "damaged")

    def _leave_out(self, step: int, reason: str) -> None:
        """The job's list does not name the checkpoint of a step any more."""
        del self._reported[step]
        self._account.put("checkpoint", {"step": step, "deleted": True, "reason": reason})

    def _retain_unless_fenced(self) -> Retained | None:
        """What is kept is the newest attempt's affair: None in an older one."""
        if self.catalog.is_fenced(self._plan.attempt):
            return None
        mode = self._plan.best_mode if self._plan.best_metric is not None else None
        return self.catalog.retain(self._plan.checkpoint_keep, mode)

    def _put_off(self, why: str) -> None:
        self._has_surplus = True
        self._again_at = self._clock() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _MAX_PAUSE_S)
        if not self._is_put_off:
            self._is_put_off = True
            text = f"Older checkpoints could not be deleted, and it is tried again: {why}."
            self._account.event("checkpoint.not_deleted", text[:1000])

    def _report(self, manifest: Manifest, location: str) -> None:
        self._reported[manifest.step] = manifest.folder
        self._account.put("checkpoint", description(manifest, location))
