"""Takes the checkpoints that a script hands over, and stores them in threads, or sends them to the driver in time."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trainers.checkpoints.catalog import Catalog
from trainers.job_storage import JobStorages
from trainers.plan import AttemptPlan
from trainers.storage import StorageError
from trainers.supervisor.checkpoint_intake import (
    MAX_UNDER_WAY,
    CheckpointIntake,
    CheckpointOffer,
    TakeCounter,
    TakenFolder,
)
from trainers.supervisor.kept_checkpoints import KeptCheckpoints
from trainers.supervisor.redacted_messages import Messages
from trainers.supervisor.shard_transfer import CheckpointShard, send, size_of
from trainers.supervisor.snapshot_memory import SnapshotSpace
from trainers.supervisor.write_speed import WriteSpeed, fits
from trainers.worker_identity import WorkerIdentity


class CheckpointUploads:
    """The checkpoints of one worker; `clean` takes values of secrets out of a text."""

    def __init__(
        self,
        plan: AttemptPlan,
        storages: JobStorages,
        driver: Any,
        outbox: Messages,
        clean: Callable[[str], str],
    ) -> None:
        self._plan = plan
        self._storages = storages
        self._driver = driver
        self._outbox = outbox
        self._clean = clean
        self._speed = WriteSpeed(plan.write_bytes_per_s)
        #: Guards the measured speed.
        self._lock = threading.Lock()
        self._uploads: list[threading.Thread] = []
        self._take_counter = TakeCounter()
        self._intake: CheckpointIntake | None = None
        self._kept: KeptCheckpoints | None = None
        #: When this job's first machine is preempted, by the monotonic clock; None: none is.
        self.deadline_at: float | None = None

    def open(
        self, scratch: Path, staging: Path, snapshots: SnapshotSpace | None, kept: KeptCheckpoints | None
    ) -> None:
        """Take what the script writes in `scratch` or in memory, by way of `staging`, and keep it.  Raises OSError."""
        self._kept = kept
        self._intake = CheckpointIntake(scratch, staging, snapshots)

    def close(self) -> None:
        """Take nothing more."""
        if self._intake is not None:
            self._intake.close()

    def join(self) -> None:
        """Wait until all that was taken is stored, or cannot be."""
        for upload in self._uploads:
            upload.join()

    def count_abandoned(self, message: Mapping[str, Any], generation: int) -> None:
        """This rank made no checkpoint of a step: the others may have made theirs, and counted it.

        `generation` is that of the present worker group, and a message may name the one before.
        Raises KeyError, TypeError, ValueError or OverflowError for a malformed message.
        """
        self._take_counter.count(int(message["step"]), int(message.get("generation", generation)))

    def take(self, offer: CheckpointOffer, identity: WorkerIdentity) -> None:
        """Take a rank's files of a checkpoint, and store them in a thread."""
        assert self._intake is not None
        # Written by the group that it names, which may have changed in place meanwhile: then it is dropped.
        identity = dataclasses.replace(identity, generation=offer.generation)
        number = self._take_counter.count(offer.step, offer.generation)
        self._uploads = [upload for upload in self._uploads if upload.is_alive()]
        try:
            if len(self._uploads) >= MAX_UNDER_WAY:
                raise OSError(f"{MAX_UNDER_WAY} checkpoints before it are still on their way to the storage")  # noqa: TRY301
            taken = self._intake.take(offer)
        except OSError as error:
            why = self._clean(f"the checkpoint of step {offer.step} could not be taken: {error}")
            self._outbox.put_lines("remora", why[:1000])
            self._abandon(offer.step, offer.generation)
        else:
            upload = threading.Thread(target=self._upload, args=(taken, offer, identity, number))
            self._uploads.append(upload)
            upload.start()

    def _upload(
        self, taken: TakenFolder, offer: CheckpointOffer, identity: WorkerIdentity, number: int
    ) -> None:
        """Store the files, or send them to the driver when the storage would not have them in time."""
        try:
            size = size_of(taken.folder)
            with self._lock:
                now = time.monotonic()
                speed, ahead = self._speed.bytes_per_s(now), self._speed.waiting_bytes
                in_time = fits(size + ahead, speed, self.deadline_at, now)
            shard = CheckpointShard(
                rank=identity.rank,
                step=offer.step,
                attempt=identity.attempt,
                generation=identity.generation,
                size_bytes=size,
                asked=offer.asked,
                take=number,
                token=offer.token,
            )
            if in_time or not send(self._driver, shard, taken.folder):
                self._store(taken, shard)
        except OSError as error:
            self._report_unstored(offer.step, offer.generation, error)
        finally:
            taken.discard()

    def _store(self, taken: TakenFolder, shard: CheckpointShard) -> None:
        kept = self._kept
        if kept is not None and not kept.may_keep(taken.root, shard.size_bytes):
            kept = None
        with self._lock:
            write = self._speed.begin(shard.size_bytes, time.monotonic())
        try:
            catalog = Catalog(self._storages.open(self._plan.checkpoint_url), self._plan.job_id)
            files = catalog.put(
                taken.folder,
                shard.step,
                shard.attempt,
                shard.generation,
                shard.rank,
                shard.take,
                consume=kept is None,
            )
        except (StorageError, OSError) as error:
            with self._lock:
                self._speed.drop(write)
            self._report_unstored(shard.step, shard.generation, error)
            return
        with self._lock:
            self._speed.end(write, time.monotonic())
        if kept is not None:
            kept.keep(taken, shard)
        message = {"type": "shard", "step": shard.step, "files": files, "asked": shard.asked}
        of = {"generation": shard.generation, "take": shard.take, "token": shard.token}
        self._outbox.put({**message, **of})

    def _report_unstored(self, step: int, generation: int, error: Exception) -> None:
        self._outbox.put_lines("remora", f"the checkpoint of step {step} could not be stored: {error}"[:1000])
        self._abandon(step, generation)

    def _abandon(self, step: int, generation: int) -> None:
        # The worker group may have changed in place meanwhile, and repeat that step.
        self._outbox.put({"type": "abandoned", "step": step, "generation": generation})
