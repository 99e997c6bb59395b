"""DeepSpeed: unmodified scripts that call `deepspeed.initialize`; `remora/deepspeed/` is what happens inside them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from remora.deepspeed import record
from remora.deepspeed.config_files import check_config_files
from remora.deepspeed.conversion_process import PROCESSES_VARIABLE
from remora.deepspeed.refusal import Refused
from remora.spec.worker_sizes import WorkerSizes
from trainers.backends.backend import Backend, BackendUnusable, LaunchContext
from trainers.confined_folders import ConfinedFolder

#: Interpreters that run `remora.deepspeed.site` before a script.
_SITE = Path(record.__file__).parent / "site"


#: Bytes that are read of a configuration.
_CONFIG_BYTES = 2**20


class DeepSpeed(Backend):
    """Loads Remora's hook into the script's `deepspeed`, and puts its checkpoint where the script looks for it."""

    def prepare(self, launch: LaunchContext) -> None:
        """Refuse what cannot train, and link the checkpoint into the script's own folder."""
        if importlib.util.find_spec("deepspeed") is None:
            raise BackendUnusable(
                "DeepSpeed is not installed on the nodes; install it there: pip install deepspeed==0.19.8"
            )
        try:
            batch = _global_batch(launch.environment)
            # A script of another worker may run in this folder already, and put links anywhere.
            with ConfinedFolder(launch.code) as code:
                check_config_files(
                    launch.plan.command,
                    batch,
                    lambda name: _text_of(code, name),
                    is_resizable=_is_resizable(launch.plan.sizes),
                )
            if launch.resume is not None and launch.manifest is not None:
                _link_checkpoint(
                    record.read(launch.resume, str(launch.manifest.step)), launch.resume, launch.code
                )
        except Refused as refused:
            raise BackendUnusable(str(refused)) from refused

    def variables(self, launch: LaunchContext) -> dict[str, str]:
        """The hook, the CPU where the job has no GPU, whether the number of workers may change, and processors."""
        behind = launch.environment.get("PYTHONPATH")
        variables = {"PYTHONPATH": f"{_SITE}{os.pathsep}{behind}" if behind else str(_SITE)}
        if not launch.plan.resources.get("GPU") and "DS_ACCELERATOR" not in launch.environment:
            variables["DS_ACCELERATOR"] = "cpu"
        if _is_resizable(launch.plan.sizes):
            variables["REMORA_RESIZABLE"] = "1"
        # What the workers of this node have together.
        cpus = launch.plan.resources.get("CPU", 1.0) * launch.identity.local_world_size
        variables[PROCESSES_VARIABLE] = str(max(1, int(cpus)))
        return variables


def _is_resizable(sizes: WorkerSizes) -> bool:
    return sizes.min < sizes.max


def _text_of(code: ConfinedFolder, name: str) -> str | None:
    """A file of the code, which is read as the node's user and so never through a link; None where there is none."""
    try:
        with code.open_file(name) as file:
            return file.read(_CONFIG_BYTES).decode(errors="replace")
    except OSError:
        return None


def _global_batch(environment: Mapping[str, str]) -> int | None:
    asked = environment.get("REMORA_GLOBAL_BATCH")
    return int(asked) if asked else None


def _link_checkpoint(saved: record.Record, resume: Path, code: Path) -> None:
    """Link the checkpoint into the script's own folder, where it looks first.

    Workers of one machine share `code`, and all of them do the same.
    """
    if saved.folder is None:
        return
    # A script of another worker may run there already, and put links anywhere.
    with ConfinedFolder(code) as opened:
        for entry in resume.iterdir():
            name = str(PurePosixPath(saved.folder, entry.name))
            with contextlib.suppress(FileExistsError):
                if entry.is_dir():
                    opened.make_link(name, entry)
                else:
                    opened.copy_in(entry, name)
