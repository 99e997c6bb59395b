"""Run by Python before a script of a DeepSpeed job: installs Remora's hook on the import of `deepspeed`.

A checkpoint for another number of workers begins to be converted here, too.
"""

import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
from pathlib import Path

_FOLDER = str(Path(__file__).parent)


def _install() -> None:
    try:
        from remora.deepspeed.conversion_process import begin_ahead
        from remora.deepspeed.hook import install_import_hook
    except ImportError:
        print("remora: this Python has no remora, so its DeepSpeed trains without it", file=sys.stderr)
    else:
        install_import_hook()
        # What fails here is tried, and said, when the checkpoint is loaded.
        with suppress(OSError):
            begin_ahead()


def _run_shadowed() -> None:
    """A `sitecustomize` of the environment itself, that this one stands before."""
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


sys.path[:] = [entry for entry in sys.path if entry != _FOLDER]
_install()
_run_shadowed()
