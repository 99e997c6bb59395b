"""Wraps `deepspeed.initialize`, and the Trainer of transformers, as soon as a script imports them, however it does."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import math
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from remora.deepspeed.configuration import TOTAL, batch_of, check_resizable, filled
from remora.deepspeed.refusal import Refused, end_refused
from remora.deepspeed.trainer_arguments import batch_before, config_of, global_batch_of_job, wrap_arguments
from remora.deepspeed.trainers import wrap_trainer
from remora.script import native_threads

#: DeepSpeed's kernel for inference on CPUs; compiling it would cost each machine's first script a minute.
_UNUSED_KERNEL = "deepspeed_shm_comm"


def install_import_hook() -> None:
    """Wrap `deepspeed`, and what of transformers trains with it, when they are imported from now on."""
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds modules as usual, and has the loaders of some wrap them when they are loaded."""

    _is_asking = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002 - the protocol's
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """The module's specification; None for all other modules."""
        if fullname not in _WRAPPED or self._is_asking:
            return None
        # Code that only asks whether there is a DeepSpeed comes here too, so this finder stays.
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            _wrap_when_loaded(spec.loader, _WRAPPED[fullname])
        return spec


def _wrap_when_loaded(loader: Loader, wrap_module: Callable[[Any], None]) -> None:
    load = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        load(module)
        wrap_module(module)

    loader.exec_module = exec_module  # type: ignore[method-assign]


def wrap(deepspeed: Any) -> None:
    """Have engines of this `deepspeed` take part in Remora's checkpoints."""
    if os.environ.get("DS_ACCELERATOR") == "cpu":
        deepspeed.ops.__compatible_ops__[_UNUSED_KERNEL] = False
    native_threads.guard()
    deepspeed.initialize = _initialize(deepspeed.initialize)
    _refuse_half_pipelines(deepspeed.pipe.PipelineModule)


#: What wraps a module, by the module's name.
_WRAPPED: dict[str, Callable[[Any], None]] = {
    "deepspeed": wrap,
    "transformers.training_args": wrap_arguments,
    "transformers.trainer": wrap_trainer,
}


def _initialize(original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    @functools.wraps(original)
    def initialize(*arguments: Any, **named: Any) -> Any:
        from remora.deepspeed.engine import attach, copies_of, counts_every_worker, is_first

        bound = signature.bind(*arguments, **named)
        given = bound.arguments
        try:
            config = config_of(_given_config(given))
            if config is not None:
                if os.environ.get("REMORA_RESIZABLE") == "1":
                    check_resizable(config)
                layout = (given.get("model"), given.get("mpu"), config)
                numbers = filled(config, copies_of(*layout), _total_of(config, is_first=is_first()))
                if counts_every_worker(*layout):
                    del numbers[TOTAL]
                _give(given, numbers)
        except Refused as refused:
            end_refused(refused)
        made = original(*bound.args, **bound.kwargs)
        attach(made[0])
        return made

    return initialize


def _total_of(config: dict[str, Any], *, is_first: bool) -> int | None:
    """Samples of a step that are known beside the configuration: the job's, and of its first engine the checkpoint's.

    Raises Refused.
    """
    total = global_batch_of_job()
    if total is None and is_first and batch_of(config).total is None:
        # A checkpoint that says nothing of it may be a script's own.
        with contextlib.suppress(Refused):
            total = batch_before()
    return total


def _given_config(given: dict[str, Any]) -> Any:
    """The dictionary or the path that the script passes, in one of three places."""
    args = given.get("args")
    named = getattr(args, "deepspeed_config", None) or getattr(args, "deepscale_config", None)
    return given.get("config") or given.get("config_params") or named


def _give(given: dict[str, Any], config: dict[str, Any]) -> None:
    """Pass the configuration in the one place that DeepSpeed then looks at."""
    given["config"] = config
    given.pop("config_params", None)
    for name in ("deepspeed_config", "deepscale_config"):
        if getattr(given.get("args"), name, None) is not None:
            setattr(given["args"], name, None)


def _refuse_half_pipelines(pipeline: Any) -> None:
    original = pipeline.__init__
    signature = inspect.signature(original)

    @functools.wraps(original)
    def init(self: Any, *arguments: Any, **named: Any) -> None:
        try:
            given = signature.bind_partial(self, *arguments, **named).arguments
            world_size = int(os.environ.get("WORLD_SIZE", "1"))
            _check_places(given.get("num_stages"), given.get("topology"), world_size)
        except Refused as refused:
            end_refused(refused)
        original(self, *arguments, **named)

    pipeline.__init__ = init


def _check_places(stages: Any, topology: Any, world_size: int) -> None:
    """Raise Refused when this number of workers cannot be put into whole copies of the model."""
    if topology is not None:
        axes = {name: max(1, topology.get_dim(name)) for name in topology.get_axis_names()}
        together = math.prod(length for name, length in axes.items() if name != "data")
        if together * axes.get("data", 1) != world_size:
            raise Refused(
                f"the topology has places for {together * axes.get('data', 1)} workers, of which {together} hold one"
                f" model together, and there are {world_size}; write workers: {{multiple_of: {together}}} into the job,"
                " and have the script make as many copies as WORLD_SIZE allows"
            )
    elif isinstance(stages, int) and stages > 0 and world_size % stages:
        raise Refused(
            f"the pipeline has {stages} stages, and {world_size} workers cannot be cut into whole pipelines;"
            f" write workers: {{multiple_of: {stages}}} into the job"
        )
