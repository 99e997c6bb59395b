"""What all elastic loops have in common: steps from a feed, and reports that outlive the rank that sent them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import torch

from remora import training
from remora.torch.agreement import Diverged
from remora.torch.compute_time import ComputeTime
from remora.torch.feed import (
    Feed,
    FeedPlan,
    LoadedBatch,
    MicroBatch,
    is_stream,
    load_batches,
)
from remora.torch.group import Group, PeerLost
from remora.torch.loading import Loading
from remora.torch.loop_settings import Settings, apply_precision
from remora.torch.order import Position
from remora.torch.sample_fingerprints import different_sample_text, first_different_rank
from remora.torch.sharded_stream import ShardedStream, check_stream
from remora.torch.state import Progress
from remora.torch.step import AnyStep, Compute, Step
from remora.torch.stream_state import merged
from remora.torch.streams import Source, shared_places

#: Newest reports that every rank keeps; more than a supervisor holds back to send them together.
REPORTS_KEPT = 256


def _with_one_thread(batches: Iterator[LoadedBatch]) -> Iterator[LoadedBatch]:
    """The same, each loaded with one thread of the processor; who takes them has as many as before."""
    while True:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            loaded = next(batches, None)
        finally:
            torch.set_num_threads(threads)
        if loaded is None:
            return
        yield loaded


class ElasticLoop(ABC):
    """A loop that begins, does steps, and joins other groups until all workers have the last step."""

    def __init__(
        self,
        settings: Settings,
        device: torch.device,
        data: Any,
        loading: Loading,
    ) -> None:
        check_stream(data, settings.epochs, loading.num_workers)
        apply_precision()
        self._settings = settings
        self._device = device
        self._data = data
        #: What the feed reads.
        self._source = Source(data) if is_stream(data) else data
        self._loading = loading
        self._link = training.open_link()
        self._compute_time = ComputeTime(device, self._report_compute_time)
        self._progress = Progress(0, 0, 0)
        self._feed = Feed(iter(()))
        #: The step that the script is in.
        self._step: AnyStep | None = None
        #: The newest reports, kept on every rank: rank 0 may die before the supervisor has received them.
        self._reports: deque[tuple[int, dict[str, float]]] = deque(maxlen=REPORTS_KEPT)
        self._was_rank_0 = False
        #: Epoch and place of batches that are left out of training.
        self._left_out: list[tuple[int, int]] = []
        #: Step of the newest checkpoint of the present group.
        self._saved_step: int | None = None
        #: The script has asked for no further step.
        self._is_stopped = False

    @property
    def world(self) -> training.World:
        """This worker's place in the present worker group."""
        return training.world()

    def stop(self) -> None:
        """End training after the step that the script is in, as if it were the last one; all workers call it alike."""
        self._is_stopped = True

    # --- what each loop implements ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _rank(self) -> int:
        """This worker's rank in the present group."""

    @property
    @abstractmethod
    def _generation(self) -> int:
        """Number of the present group."""

    @property
    @abstractmethod
    def _own_shards(self) -> range:
        """Shards that this worker carries."""

    @abstractmethod
    def _begin(self) -> None:
        """Form the first group, come to a common state, and open the feed."""

    @abstractmethod
    def _end_step(self, step: AnyStep) -> None:
        """The script is through with a step: note it, and do what was decided for its end."""

    @abstractmethod
    def _settle(self) -> bool:
        """Make sure that all workers have the last step; False when the group changed and there may be more to do."""

    def _finish(self) -> None:  # noqa: B027 - nothing by default
        """Training is over."""

    def _interrupt(self) -> None:  # noqa: B027 - nothing by default
        """The script leaves the loop in the middle of it."""

    def _does_report(self) -> bool:
        """Whether reports count; false in a group that broke."""
        return True

    def _value(self, value: Any) -> float:
        return float(value)

    # --- what they share --------------------------------------------------------------------------------------------

    def _next_step(self) -> MicroBatch | None:
        """The first micro-batch of the next step; None once there is none and all workers have the last one."""
        while True:
            micro_batch = None if self._is_stopped else self._feed.peek()
            if micro_batch is not None:
                return micro_batch
            if self._settle():
                return None

    def _open_feed(self) -> None:
        """Batches of this worker's shards from the present position on."""
        settings, progress = self._settings, self._progress
        left = None if settings.total_steps is None else max(0, settings.total_steps - progress.step)
        start = Position(progress.epoch, progress.place)
        plan = self._feed_plan(self._own_shards, start, left, settings.check_every)
        plan = replace(plan, data_state=progress.data)
        self._feed = Feed(load_batches(self._source, plan, self._loading))

    def _progress_after(self, step: AnyStep) -> Progress:
        """Progress once a step counts whose micro-batches were all read."""
        data = merged(self._progress.data, self._feed.data_state)
        return Progress(step.number, step.epoch, step.place + 1, data)

    def _share_places(self, group: Group, device: torch.device) -> None:
        """Let each worker know where the streams of all shards are, not its own alone; all workers call it alike.

        A worker that gets a shard goes on from what is known of its stream, which is always right, and a later place
        leaves less to read again.  So a loss meanwhile, which the next exchange meets, is none here.
        """
        if isinstance(self._data, ShardedStream):
            with suppress(PeerLost):
                places = shared_places(group, device, self._progress.data, self._own_shards)
                self._progress = replace(self._progress, data=places)

    def _feed_of(self, step: AnyStep, shard: int) -> Feed:
        """Batches of one shard, of whichever worker it is, in one step; read in this process."""
        plan = self._feed_plan(range(shard, shard + 1), Position(step.epoch, step.place), 1, probe_every=0)
        batches = load_batches(self._data, plan, replace(self._loading, num_workers=0, prefetch_factor=None))
        # Processes of a loader have one thread, and what a dataset computes may have other bits with several.
        return Feed(batches if self._loading.num_workers == 0 else _with_one_thread(batches))

    def _feed_plan(self, own: range, start: Position, steps: int | None, probe_every: int) -> FeedPlan:
        settings = self._settings
        return FeedPlan(
            global_batch=settings.global_batch,
            shards=settings.shards,
            micro_batch=settings.micro_batch,
            seed=settings.seed,
            shuffle=settings.shuffle,
            drop_last=settings.drop_last,
            epochs=settings.epochs,
            steps=steps,
            own=own,
            start=start,
            probe_every=probe_every,
            left_out=frozenset(self._left_out),
        )

    def _report(self, step: AnyStep, metrics: Mapping[str, Any]) -> None:
        if self._link is None or not self._does_report():
            return
        values = {name: self._value(value) for name, value in metrics.items()}
        self._reports.append((step.number, values))
        if self._rank == 0:
            training.report(step.number, values, total_steps=self._settings.total_steps)

    def _report_again(self) -> None:
        """A worker that becomes rank 0 reports again what its predecessor may not have sent."""
        is_first = self._rank == 0
        if is_first and not self._was_rank_0 and self._link is not None:
            for number, values in self._reports:
                self._link.report(number, values, self._settings.total_steps, is_again=True)
        self._was_rank_0 = is_first

    def _check_data(self, group: Group) -> None:
        """Compare one sample with what all other workers read, when that is due; raises Diverged and PeerLost."""
        micro_batch = self._feed.peek()
        if micro_batch is None or micro_batch.fingerprint is None:
            return
        is_bitwise = self._settings.exactness == "bitwise"
        rank = first_different_rank(group, micro_batch.fingerprint, self._device, is_bitwise=is_bitwise)
        if rank is not None:
            is_sampled = self._loading.sampling is not None
            self._end_diverged(different_sample_text(rank, micro_batch.fingerprint, is_sampled=is_sampled))

    def _end_diverged(self, text: str) -> NoReturn:
        """Report why the attempt ends, and raise Diverged."""
        if self._link is not None:
            self._link.send({"type": "diverged", "generation": self._generation, "text": text})
        raise Diverged(text)

    def _report_compute_time(self, own_s: float) -> None:
        if self._link is not None:
            self._link.send(
                {
                    "type": "pace",
                    "generation": self._generation,
                    "own_s": own_s,
                    "shards": len(self._own_shards),
                }
            )


class FunctionLoop(ElasticLoop):
    """A loop whose steps get a function that computes the loss of a batch."""

    def __iter__(self) -> Iterator[Step]:
        """The steps that are left, each to be done by one call of its `backward`."""
        self._begin()
        while (first := self._next_step()) is not None:
            self._step = step = Step(self, self._progress.step + 1, first)
            try:
                yield step
            except GeneratorExit:
                self._interrupt()
                raise
            if not step.is_done:
                raise RuntimeError("call step.backward(...) once in every step of the loop")
            self._end_step(step)
        self._finish()

    @abstractmethod
    def _run(self, step: Step, compute: Compute) -> torch.Tensor:
        """The body of `step.backward`."""
