"""What `ray.train` does inside of a training loop: reports, checkpoints, ranks, and words between workers."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray.train import Checkpoint, CheckpointUploadMode, PreemptionInfo
from ray.train.v2.api.context import LocalTrainContext

from remora import training
from remora.integrations.ray_train.checkpoints import Saver, names_in, own_names
from remora.integrations.ray_train.refusals import check_report, refuse_all_checkpoints, refuse_dataset_shard
from remora.integrations.ray_train.workers import TrainWorkers


class TrainCalls:
    """The object that Ray Train asks for each of its calls (`TrainFnUtils`), for this worker.

    A report is a step of the job: the first one is step 1, and after a resume from a checkpoint they are counted from
    that of the checkpoint on.
    """

    def __init__(self, workers: TrainWorkers, experiment: str) -> None:
        self._workers = workers
        self._saver = Saver()
        self._step = 0
        #: Names of values that are no numbers.
        self._left_out: set[str] = set()
        #: What this worker has reported last.
        self.metrics: dict[str, Any] | None = None
        world = workers.world
        self._context = LocalTrainContext(
            experiment_name=experiment,
            world_size=world.world_size,
            world_rank=world.rank,
            local_rank=world.local_rank,
            local_world_size=world.local_world_size,
            node_rank=world.node_rank,
        )

    def report(
        self,
        metrics: dict[str, Any],
        checkpoint: Any = None,
        checkpoint_dir_name: str | None = None,  # noqa: ARG002 - checkpoints of a job have no names
        checkpoint_upload_mode: Any = CheckpointUploadMode.SYNC,
        delete_local_checkpoint_after_upload: bool | None = None,
        checkpoint_upload_fn: Any = None,
        validation: Any = False,
    ) -> None:
        """Report a step, and store a checkpoint when any worker has one; all workers call it.

        Raises NotImplementedError as `check_report` does, and ValueError for a checkpoint without files.
        """
        check_report(
            checkpoint_upload_fn, checkpoint_upload_mode != CheckpointUploadMode.NO_UPLOAD, validation
        )
        self._step += 1
        self.metrics = dict(metrics)
        training.report(self._step, self._numbers(metrics))
        if checkpoint is None:
            self._store(None)
            return
        with checkpoint.as_directory() as folder:
            self._store(Path(folder))
            if delete_local_checkpoint_after_upload:
                shutil.rmtree(folder, ignore_errors=True)

    def _store(self, source: Path | None) -> None:
        given = self._workers.gather(None if source is None else names_in(source))
        if all(names is None for names in given):
            return
        if not any(given):
            raise ValueError("the folder of the checkpoint that was reported has no file in it")
        # Ranks agree here on the step of a planned stop, which is a checkpoint in any case.
        training.should_checkpoint()
        self._saver.store(self._step, source, own_names(given, self._workers.world.rank))

    def _numbers(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        numbers: dict[str, float] = {}
        for name, value in metrics.items():
            try:
                numbers[str(name)] = float(value)
            except (TypeError, ValueError):
                self._leave_out(str(name)[:100])
        return numbers

    def _leave_out(self, name: str) -> None:
        if name in self._left_out or len(self._left_out) >= 100:
            return
        self._left_out.add(name)
        if self._workers.world.rank == 0:
            print(
                f"remora: the reported value {name!r} is no number and is not among the job's metrics",
                flush=True,
            )

    def get_checkpoint(self) -> Any:
        """What this worker has reported last, else the checkpoint from which the job resumes, else None."""
        if self._saver.last is not None:
            return Checkpoint.from_directory(self._saver.last)
        resumed = training.resume_from()
        if resumed is None:
            return None
        if self._step == 0:
            self._step = int(os.environ["REMORA_RESUME_STEP"])
        return Checkpoint.from_directory(resumed)

    def get_context(self) -> Any:
        """Ranks and sizes."""
        return self._context

    def get_preemption_info(self) -> Any:
        """The earliest notice that any worker has, or None; all workers call it.

        Which workers it concerns is not known to them.
        """
        notices = [one for one in self._workers.gather(training.preemption()) if one is not None]
        if not notices:
            return None
        deadline_at = min(one.deadline_at for one in notices)
        return PreemptionInfo(deadline_ms=int(deadline_at * 1000), preempted_node_to_ranks={})

    def is_distributed(self) -> bool:
        """False: devices are those of this process, and not those that Ray has assigned to an actor."""
        return False

    def barrier(self) -> None:
        """Wait until all workers are here."""
        self._workers.gather(None)

    def broadcast_from_rank_zero(self, data: Any) -> Any:
        """What rank 0 gives; all workers call it."""
        return self._workers.gather(data if self._workers.world.rank == 0 else None)[0]

    def get_dataset_shard(self, dataset_info: Any) -> None:  # noqa: ARG002
        """Raises NotImplementedError."""
        refuse_dataset_shard()

    def get_all_reported_checkpoints(self, **_: Any) -> None:
        """Raises NotImplementedError."""
        refuse_all_checkpoints()
