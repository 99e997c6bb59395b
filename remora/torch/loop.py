"""The elastic training loop; see `Loop`."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Any

import torch

from remora.torch.agreement import copy_of, gathered, is_rehearsed, parameters_beside
from remora.torch.elastic import FunctionLoop
from remora.torch.feed import is_stream
from remora.torch.group import PeerLost
from remora.torch.optimizers import gradient_of
from remora.torch.randomness import seed_everything
from remora.torch.reduction import Bitwise
from remora.torch.replicated import ReplicatedLoop
from remora.torch.step import (
    AnyStep,
    Compute,
    Outcome,
    Step,
    check_gradients,
    moved,
    not_repeated_text,
    outcome,
    repeats,
)
from remora.torch.verification import (
    VERIFY_VARIABLE,
    Checks,
    Miscomputed,
    Verdict,
    checks_of,
    doubted,
    is_verified,
    judge_all,
    undecided_text,
    wrong_text,
)


class Loop(ReplicatedLoop, FunctionLoop):
    """A training loop whose result does not depend on the number of workers, nor on how often that changed.

        loop = Loop(model, optimizer, data=dataset, global_batch=96, shards=12, total_steps=1000)
        for step in loop:
            loss = step.backward(lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()
            step.report(loss=loss)

    Runs alone, under torchrun, and under Remora, where it resumes from the job's newest checkpoint, writes checkpoints
    when they are due, and goes on in place when workers are lost or join.

    - `optimizer`: one, or a list of all that change parameters of the model.
    - `data`: a dataset with a length, or an iterable one (`feed.py` has its rule).
    - `global_batch`: samples of a step.  `shards`: parts of it that workers carry; no more workers than shards.
    - `sampler`: the order of the samples of an epoch; `batch_sampler`: the global batches, of all workers together
      (`sampling.py` has their rule).  `num_workers`, `prefetch_factor`: processes that read ahead, and how far each.
    - `micro_batch`: most samples of one forward pass; a whole shard if None.
    - `scheduler`, `scaler`: saved and resumed; losses are scaled by `scaler` before their backward pass.
    - `state`: anything else with `state_dict()` and `load_state_dict()`, by name.
    - `exactness`: `sample-exact` (same samples, order and random numbers) or `bitwise` (same bits too).
    - `nonfinite`: what follows a loss or gradients that are not finite: `stop`, `skip` the step, or `rollback` to a
      snapshot and leave the batch out; by default what the script makes of it.
    - `check_every`: steps between two comparisons of the workers' weights, which raise Diverged; 0 for none.
    - `verify_every`: steps between two in which each worker computes a shard of another one again, with `bitwise`: a
      machine that computes wrongly is found, and under Remora training goes on without it.  None: never.

    `evaluate(data, compute)` takes means over another dataset, shared by all workers.

    `global_batch`, `shards`, `exactness`, `nonfinite` and `verify_every` that are left out come from `elastic` in the
    job's specification; without that `exactness` is `sample-exact`, and the first two have to be given.

    Raises ValueError for arguments and models that cannot work, and CheckpointUnusable for a checkpoint of another
    script.
    """

    #: The function given to `backward` in the step under way.
    _compute: Compute | None = None
    #: Who computes which shard again in the step under way; None: no check is due.
    _checks: Checks | None = None

    def _run(self, step: Step, compute: Compute) -> torch.Tensor:
        self._compute = compute
        try:
            numbers = None
            while numbers is None:
                self._compute_once(step, compute)
                numbers = self._reduce(step)
        except BaseException:
            self._optimizers.end(None)
            raise
        finally:
            self._compute = None
        return self._complete(step, numbers)

    def _compute_once(self, step: Step, compute: Compute) -> None:
        """One try at a step."""
        rehearses = is_rehearsed(self._progress.step, self._settings.check_every)
        for batch in self._batches(step):
            rehearsed = self._rehearse(batch, compute) if rehearses else None
            found = self._computed(batch, compute)
            rehearses = False
            if rehearsed is not None:
                self._check_repeats(rehearsed, found)
            self._add(found)

    def _check_verifiable(self) -> None:
        if is_stream(self._data):
            raise ValueError(
                "verify_every needs a dataset with a length: a worker would read a stream from its start for the shard"
                " of another one"
            )

    def _start(self, step: AnyStep) -> None:
        super()._start(step)
        if self._settings.verify_every is None:
            return
        group, settings = self._reduction.group, self._settings
        self._checks = None
        if is_verified(step.number, settings.verify_every) and group.world_size > 1:
            node = torch.tensor([group.rendezvous.node_rank], device=self._device)
            nodes = gathered(group, node).flatten().tolist()
            self._checks = checks_of(step.number, settings.seed, settings.shards, nodes)
        self._bitwise.watched.begin(None if self._checks is None else self._checks.shards[group.rank])

    def _verify(self, step: AnyStep) -> None:
        if (checks := self._checks) is None:
            return
        rank = self._rank
        other = checks.checked_by(rank)
        again = self._found_again(step, checks.shards[other])
        firsts = self._found_by_all([self._bitwise.watched.found(), again])
        doubts = doubted(checks, firsts)
        if not doubts:
            return
        seconds = self._found_by_all(
            [
                self._found_again(step, checks.shards[one]) if rank in checks.parts_of(one) else 0
                for one in doubts
            ]
        )
        self._act_on(judge_all(checks, doubts, firsts, seconds), step.number)

    def _act_on(self, verdict: Verdict, step: int) -> None:
        """Raise PeerLost where the others can go on without a worker, else Miscomputed or Diverged."""
        if not verdict.wrong:
            text = undecided_text(step, verdict.undecided)
            if self._link is not None and verdict.is_steady and VERIFY_VARIABLE in os.environ:
                # The driver knows what their nodes are called.
                self._say_miscomputed(verdict.undecided, step, text, is_known=False)
            self._end_diverged(text)
        text = wrong_text(step, verdict.wrong)
        if self._link is None:
            raise Miscomputed(f"{text}: start again without its machine, from the newest checkpoint")
        if VERIFY_VARIABLE not in os.environ:
            self._end_diverged(
                f"{text}; with elastic.verify in the job's specification the others would go on"
            )
        self._say_miscomputed(verdict.wrong, step, text, is_known=True)
        raise PeerLost(text)

    def _say_miscomputed(self, ranks: Collection[int], step: int, text: str, *, is_known: bool) -> None:
        """Report to the driver which ranks compute wrongly; not `is_known`: some of them do."""
        assert self._link is not None
        self._link.send(
            {
                "type": "miscomputed",
                "generation": self._generation,
                "ranks": sorted(ranks),
                "is_known": is_known,
                "step": step,
                "text": text,
            }
        )

    def _found_by_all(self, own: list[int]) -> list[list[int]]:
        """The numbers of all ranks; raises PeerLost."""
        numbers = torch.tensor(own, dtype=torch.int64, device=self._device)
        found: list[list[int]] = gathered(self._reduction.group, numbers).tolist()
        return found

    def _found_again(self, step: AnyStep, shard: int) -> int:
        """The digest of a shard's gradients, computed here; the step's own gradients stay as they are."""
        assert self._compute is not None
        parameters = list(self._replica.parameters.values())
        gradients = [one.grad for one in parameters]
        self._replica.drop_gradients()
        try:
            for micro_batch, batch in self._feed_of(step, shard).step():
                if micro_batch.index == 0:
                    self._buffers.restore()
                if micro_batch.samples:
                    self._seed(step, micro_batch)
                    self._losses.scaled(self._computed(batch, self._compute), micro_batch).backward()
            return self._bitwise.digest_of_gradients()
        finally:
            self._buffers.restore()
            for one, gradient in zip(parameters, gradients, strict=True):
                one.grad = gradient

    @property
    def _bitwise(self) -> Bitwise:
        assert isinstance(self._reduction, Bitwise)
        return self._reduction

    def _watched(self) -> dict[str, torch.Tensor]:
        """With the modules that the function uses beside the model."""
        known = {id(one) for one in self._replica.parameters.values()}
        return {**super()._watched(), **parameters_beside(self._compute, known)}

    def _rehearse(self, batch: Any, compute: Compute) -> float | None:
        """The loss of a micro-batch that is about to be computed, of which nothing else is left.

        None where the batch cannot be copied: the script's function may change it.
        """
        if (copied := copy_of(batch)) is None:
            return None
        loss = float(self._computed(copied, compute).loss.detach())
        self._buffers.restore()
        seed_everything(self._micro_batch_seed)
        return loss

    def _check_repeats(self, rehearsed: float, found: Outcome) -> None:
        """Raise Diverged where a micro-batch has another loss than when it was rehearsed."""
        again = float(found.loss.detach())
        if not repeats(rehearsed, again, is_bitwise=self._settings.exactness == "bitwise"):
            if self._unchanging is not None:
                self._check_unchanged(self._unchanging)
            self._end_diverged(not_repeated_text(rehearsed, again))

    def _computed(self, batch: Any, compute: Compute) -> Outcome:
        """What the script's function makes of one micro-batch."""
        parameters = tuple(self._replica.parameters.values())
        before = [gradient_of(one) for one in parameters]
        found = outcome(compute(self._replica.model, moved(batch, self._device)))
        check_gradients(parameters, before)
        return found
