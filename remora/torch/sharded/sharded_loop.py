"""The elastic loop for models that are sharded over their workers; see `ShardedLoop`."""

from __future__ import annotations

import time

import torch

from remora.torch.agreement import Diverged, changed_text, is_rehearsed
from remora.torch.elastic import FunctionLoop
from remora.torch.group import PeerLost
from remora.torch.nonfinite import NotFinite
from remora.torch.randomness import derive, seed_everything
from remora.torch.sharded.sharded_training import ShardedTraining
from remora.torch.sharded.step_runner import StepResult, local_gradients
from remora.torch.step import Compute, Step


class ShardedLoop(ShardedTraining, FunctionLoop):
    """`Loop` for a model that no worker holds as a whole: FSDP and tensor parallelism shard it, and its optimizer.

        def build(mesh):
            model = Net()
            for block in model.blocks:
                fully_shard(block, mesh=mesh)
            fully_shard(model, mesh=mesh)
            return model, torch.optim.AdamW(model.parameters())

        loop = ShardedLoop(build, data=dataset, global_batch=96, shards=12, total_steps=1000)
        for step in loop:
            loss = step.backward(lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]))
            loop.optimizer.step()
            step.report(loss=loss)

    Each worker keeps its own part of the state and that of one neighbour in host memory, as of every `snapshot_every`
    steps, so that training goes on from memory when one worker, or one node with not more than half of the workers,
    is lost.  At most `snapshot_every + 1` steps are done again then; `step.number` says which.

    `build(mesh)` returns the model, sharded over this mesh, and its optimizer, and a scheduler if there is one.  It is
    called again in every new group, so what it made is reached as `loop.model`, `loop.optimizer`, `loop.scheduler`.
    Random numbers are seeded before it, the same on all workers.

    - `shard`: workers that one copy of the model is sharded over; None: all.  The mesh is ("replicate", "shard") then.
    - `tensor`: workers that compute one layer together; the last dimension of the mesh is "tensor" then.
    - `nonfinite`: as for `Loop`; `rollback` goes back to the newest snapshot.
    - All other arguments are those of `Loop`.

    The number of workers may be any multiple of the product of `shard` and `tensor`.

    Raises ValueError for arguments and models that cannot work.
    """

    # --- steps ------------------------------------------------------------------------------------------------------

    def _run(self, step: Step, compute: Compute) -> torch.Tensor:
        while True:
            self._set_lenient(False)
            try:
                result = self._try(step, compute)
                if self._is_settled(step, result):
                    break
            except PeerLost as lost:
                self._change(str(lost))
            except (Diverged, NotFinite):
                raise
            except Exception as error:
                # Whatever goes wrong inside autograd or FSDP while a peer is missing, goes wrong because of that.
                if not self._is_broken():
                    raise
                self._change(f"a peer was lost: {error}")
            micro_batch = self._feed.peek()
            if micro_batch is None:
                step.was_skipped = True
                break
            step.number = self._progress.step + 1
            step.stand_at(micro_batch)
        seed_everything(derive(self._settings.seed, "body", step.number))
        step.metrics = dict(zip(self._step_runner.metric_names, result.means[1:], strict=False))
        # The script may change the weights from now on.
        began = time.monotonic()
        self._snapshots.await_copy()
        self._report_stall(time.monotonic() - began)
        # What it does from here to the end of the step is thrown away when a peer is lost meanwhile.
        self._set_lenient(True)
        return torch.tensor(result.means[0], device=self._device)

    def _try(self, step: Step, compute: Compute) -> StepResult:
        """Compute the gradients of a step once; raises PeerLost, after which the model is of no use."""
        built = self._present
        built.check_frozen()
        self._check_data(self._groups.host_group)
        unchanging = self._agree(compute)
        rehearses = is_rehearsed(self._progress.step, self._settings.check_every)
        built.optimizers.begin(local_gradients(built.sharded.parameters.values()))
        assert self._mesh_group is not None
        result = self._step_runner.run(
            step, compute, self._feed, built, self._groups, self._mesh_group, rehearses=rehearses
        )
        built.optimizers.end(step.number)
        if unchanging is not None and (name := unchanging.changed(self._watched(compute))) is not None:
            self._end_diverged(changed_text(name))
        if result.not_repeated is not None:
            self._end_diverged(result.not_repeated)
        return result
