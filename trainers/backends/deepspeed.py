"""DeepSpeed: unmodified scripts that call `deepspeed.initialize`; `remora/deepspeed/` is what happens inside them."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from remora.deepspeed import record
from remora.deepspeed.config_files import check_config_files
from remora.deepspeed.refusal import Refused
from trainers.backends.backend import Backend, BackendUnusable, Start

#: Interpreters that run `remora.deepspeed.site` before a script.
_SITE = Path(record.__file__).parent / "site"


class DeepSpeed(Backend):
    """Has the script's `deepspeed` meet Remora, and its checkpoint lie where the script looks for it."""

    def prepare(self, start: Start) -> None:
        """Refuse what cannot train, and show the script the checkpoint in its own folder."""
        if importlib.util.find_spec("deepspeed") is None:
            raise BackendUnusable(
                "DeepSpeed is not installed on the nodes; install it there: pip install deepspeed==0.19.8"
            )
        try:
            batch = _global_batch(start.environment)
            check_config_files(start.plan.command, batch, lambda name: _text_of(start.code / name))
            if start.resume is not None and start.manifest is not None:
                _show(record.read(start.resume, str(start.manifest.step)), start.resume, start.code)
        except Refused as refused:
            raise BackendUnusable(str(refused)) from refused

    def variables(self, start: Start) -> dict[str, str]:
        """The hook, and the CPU where the job has no GPU."""
        behind = start.environment.get("PYTHONPATH")
        variables = {"PYTHONPATH": f"{_SITE}{os.pathsep}{behind}" if behind else str(_SITE)}
        if not start.plan.resources.get("GPU") and "DS_ACCELERATOR" not in start.environment:
            variables["DS_ACCELERATOR"] = "cpu"
        return variables


def _text_of(file: Path) -> str | None:
    return file.read_text(errors="replace") if file.is_file() else None


def _global_batch(environment: Mapping[str, str]) -> int | None:
    asked = environment.get("REMORA_GLOBAL_BATCH")
    return int(asked) if asked else None


def _show(saved: record.Record, resume: Path, code: Path) -> None:
    """Have a script that looks into its own folder first find its checkpoint there.

    Workers of one machine share `code`, and all of them do the same.
    """
    if saved.folder is None:
        return
    target = code / saved.folder
    target.mkdir(parents=True, exist_ok=True)
    for entry in resume.iterdir():
        with contextlib.suppress(FileExistsError):
            if entry.is_dir():
                (target / entry.name).symlink_to(entry)
            elif not (target / entry.name).exists():
                draft = target / f"{entry.name}.{os.getpid()}.tmp"
                shutil.copyfile(entry, draft)
                draft.rename(target / entry.name)
