"""Elastic steps of a sharded model for a training loop that computes, reduces and commits by itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from remora.torch.agreement import Diverged, StateDigests, changed_text
from remora.torch.group import PeerLost
from remora.torch.nonfinite import NotFinite
from remora.torch.optimizers import Gradient, gradient_of
from remora.torch.randomness import derive, seed_everything
from remora.torch.sharded.building import Build
from remora.torch.sharded.sharded_training import ShardedTraining
from remora.torch.sharded.step_runner import StepResult, local_gradients
from remora.torch.state import Stateful
from remora.torch.step import AnyStep, Outcome
from remora.torch.steps import OpenStep, StepsLoop, check_untouched

#: What the state of a loop has itself.
_OWN_PARTS = ("sharded", "scheduler", "scaler")


class ShardedSteps(StepsLoop, ShardedTraining):
    """`Steps` for a model that no worker holds as a whole (FSDP): a loop that is not ours begins, reduces and commits.

        steps = ShardedSteps(build, data=dataset, global_batch=96, shards=12, total_steps=1000)
        while (step := steps.begin()) is not None:
            for batch in step.batches():
                step.backward(F.cross_entropy(steps.model(batch[0]), batch[1]))
            if step.reduce():
                steps.optimizer.step()
                step.commit()

    `build(mesh)` is that of `ShardedLoop`: it is called in every new group, so a trainer that holds model and optimizer
    in attributes sets them in it.

    A step counts when `commit` returns True: its state is in the memory of two workers then, so that it is not repeated
    when one of them is lost.  Where a worker is lost before, `reduce` or `commit` returns False: all go back to the
    step before, and it is computed again.

    - `state`: what the script saves beside model and optimizer, by name, the same on all workers, such as its counters;
      it goes back with a step that is computed again.
    - All other arguments are those of `ShardedLoop`, but for `snapshot_every`.

    `batches` gives workers with fewer micro-batches than others some that count for nothing, because every layer has a
    collective.  Raises ValueError for arguments and models that cannot work.
    """

    def __init__(
        self, build: Build, *, state: Mapping[str, Stateful] | None = None, **arguments: Any
    ) -> None:
        if "snapshot_every" in arguments:
            raise ValueError("leave out snapshot_every: ShardedSteps takes a snapshot of each step")
        super().__init__(build, **arguments)
        for name, part in (state or {}).items():
            if name in _OWN_PARTS:
                raise ValueError(
                    f"state={{{name!r}: ...}} is a name that ShardedSteps uses itself: take another one"
                )
            if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
                raise ValueError(f"state[{name!r}] needs the methods state_dict() and load_state_dict()")
            self._extra[name] = part
        #: Why the present try cannot count.
        self._lost: str | None = None
        self._unchanging: StateDigests | None = None

    # --- what a step calls ------------------------------------------------------------------------------------------

    def _open_batches(self, step: OpenStep) -> Iterator[Any]:
        self._lost = None
        try:
            built = self._present
            built.check_frozen()
            self._check_data(self._groups.host_group)
            self._unchanging = self._agree(None)
            built.optimizers.begin(local_gradients(built.sharded.parameters.values()))
            assert self._mesh_group is not None
            for batch in self._step_runner.batches(step, self._feed, built, self._groups, self._mesh_group):
                step.expects([gradient_of(one) for one in built.sharded.parameters.values()])
                # What the script computes with a group that breaks meanwhile does not count.
                self._set_lenient(True)
                yield batch
                self._set_lenient(False)
                step.check_computed()
        except (Diverged, NotFinite):
            raise
        except Exception as error:
            self._note_lost(error)

    def _add_loss(self, found: Outcome, before: list[Gradient]) -> None:
        if not self._is_broken():
            check_untouched(self._present.sharded.parameters.values(), before)
        self._set_lenient(False)
        try:
            self._step_runner.add(found)
        except Exception as error:
            self._note_lost(error)
        self._set_lenient(True)

    def _reduce_open(self, step: OpenStep) -> torch.Tensor | None:
        self._set_lenient(False)
        result = None
        try:
            if self._lost is None:
                result = self._reduced(step)
        except (Diverged, NotFinite):
            raise
        except Exception as error:
            self._note_lost(error)
        if result is None:
            self._give_up()
            return None
        seed_everything(derive(self._settings.seed, "body", step.number))
        step.metrics = dict(zip(self._step_runner.metric_names, result.means[1:], strict=False))
        # The script may change the weights from now on, and what it computes until it commits may not count.
        self._set_lenient(True)
        return torch.tensor(result.means[0], device=self._device)

    def _commit(self, step: AnyStep) -> bool:
        self._set_lenient(False)
        self._step = None
        try:
            self._groups.synchronize()
            self._progress = self._progress_after(step)
            self._share_places(self._groups.host_group, torch.device("cpu"))
            # Who is through has seen that all have a copy of each part, so that all come to this step after a loss.
            self._take()
            self._secure()
            if self._link is not None:
                self._compute_time.report()
                self._carry_out(self._link.reach_boundary(step.number))
        except PeerLost as lost:
            self._change(str(lost))
        return self._progress.step >= step.number

    def _end_step(self, step: AnyStep) -> None:
        self._commit(step)

    # --- tries --------------------------------------------------------------------------------------------------------

    def _reduced(self, step: OpenStep) -> StepResult | None:
        """What all workers know of the step; None where they went back.  Raises PeerLost, Diverged and NotFinite."""
        built = self._present
        result = self._step_runner.finish(built, self._groups)
        built.optimizers.end(step.number)
        unchanging, self._unchanging = self._unchanging, None
        if unchanging is not None and (name := unchanging.changed(self._watched(None))) is not None:
            self._end_diverged(changed_text(name))
        return result if self._is_settled(step, result) else None

    def _note_lost(self, error: Exception) -> None:
        """Go on where a peer is lost, whatever went wrong because of that; raises every other error."""
        if not (isinstance(error, PeerLost) or self._is_broken()):
            raise error
        self._lost = str(error) if isinstance(error, PeerLost) else f"a peer was lost: {error}"

    def _give_up(self) -> None:
        """Nothing of this try counts: join the next group where a worker is lost."""
        self._step = None
        self._unchanging = None
        lost, self._lost = self._lost, None
        if lost is not None:
            self._change(lost)
