"""Run by Python before a script of a DeepSpeed job: has `deepspeed` meet Remora when it is imported."""

import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_FOLDER = str(Path(__file__).parent)


def _meet() -> None:
    try:
        from remora.deepspeed.hook import await_deepspeed
    except ImportError:
        print("remora: this Python has no remora, so its DeepSpeed trains without it", file=sys.stderr)
    else:
        await_deepspeed()


def _run_hidden_one() -> None:
    """A `sitecustomize` of the environment itself, that this one stands before."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
_meet()
_run_hidden_one()
