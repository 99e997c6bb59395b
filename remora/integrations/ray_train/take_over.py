"""Where Ray Train's `fit()` is replaced, and what of Ray would start or look for a cluster."""

from __future__ import annotations

import os
import sys
from typing import Any

import ray
import ray.train
import ray.tune
from ray._private import auto_init_hook
from ray.train.v2._internal.constants import is_v2_enabled

from remora import training
from remora.integrations.ray_train.calls import TrainCalls
from remora.integrations.ray_train.refusals import check_trainer, refuse_cluster, refuse_tune
from remora.integrations.ray_train.workers import TrainWorkers


def take_over() -> None:
    """From now on `fit()` trains in this process; raises ImportError for a version of Ray that works otherwise."""
    if not is_v2_enabled():
        raise ImportError(
            "remora.integrations.ray_train needs Ray Train V2: install ray[train] 2.51 or newer, and leave"
            " RAY_TRAIN_V2_ENABLED out"
        )
    from ray.train.v2._internal.execution.train_fn_utils import TrainFnUtils
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    if missing := sorted(TrainFnUtils.__abstractmethods__ - set(dir(TrainCalls))):
        raise ImportError(
            f"Ray {ray.__version__} asks for {missing[0]}, which this version of Remora does not know: install ray"
            " 2.60, or a newer Remora"
        )
    DataParallelTrainer.fit = fit
    ray.init = _leave_init_out
    auto_init_hook.auto_init_ray = refuse_cluster
    ray.tune.Tuner.__init__ = refuse_tune
    ray.tune.run = ray.tune.run_experiments = refuse_tune


def _leave_init_out(*_: Any, **__: Any) -> None:
    if training.world().rank == 0:
        print("remora: ray.init() is left out, because the workers are there", flush=True)


#: This process has trained.
_has_trained = False


def fit(trainer: Any) -> Any:
    """Run the training loop as this worker; returns Ray's `Result` on rank 0, and ends the processes of other ranks.

    So what follows `fit()` in a script runs once, as it does in a driver of Ray.  Raises what the loop raises,
    NotImplementedError for what is not supported, and RuntimeError for a second call.
    """
    global _has_trained
    world = training.world()
    check_trainer(trainer, world.world_size)
    if _has_trained:
        raise RuntimeError("fit() is called a second time, and a job trains once: submit a job for each")
    _has_trained = True
    from ray.train.v2._internal.execution.train_fn_utils import set_train_fn_utils

    workers = TrainWorkers(trainer.backend_config.backend, trainer.backend_config.timeout_s)
    calls = TrainCalls(workers, trainer.run_config.name)
    set_train_fn_utils(calls)
    try:
        returned = trainer._get_train_func()()
    finally:
        set_train_fn_utils(None)
    workers.close()
    if world.rank != 0:
        sys.exit(0)
    return ray.train.Result(
        metrics=calls.metrics,
        checkpoint=calls.get_checkpoint(),
        error=None,
        path=os.environ.get("REMORA_OUTPUTS_DIR"),
        return_value=returned,
    )
