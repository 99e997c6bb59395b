"""DeepSpeed: unmodified scripts that call `deepspeed.initialize`; `remora/deepspeed/` is what happens inside them."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from remora.deepspeed import record
from remora.deepspeed.configuration import check
from remora.deepspeed.refusal import Refused
from trainers.backends.backend import Backend, BackendUnusable, Start

#: Interpreters that run `remora.deepspeed.site` before a script.
_SITE = Path(record.__file__).parent / "site"
_OPTIONS = ("--deepspeed_config", "--deepspeed-config")


class DeepSpeed(Backend):
    """Has the script's `deepspeed` meet Remora, and its checkpoint lie where the script looks for it."""

    def prepare(self, start: Start) -> None:
        """Refuse what cannot train, and show the script the checkpoint in its own folder."""
        if importlib.util.find_spec("deepspeed") is None:
            raise BackendUnusable(
                "DeepSpeed is not installed on the nodes; install it there: pip install deepspeed==0.19.8"
            )
        try:
            for config in _configurations(start):
                check(config, _global_batch(start.environment))
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


def _configurations(start: Start) -> Iterator[Mapping[str, Any]]:
    """Configurations that the command names; one that only DeepSpeed can read is judged by it."""
    words = start.plan.command
    for place, word in enumerate(words):
        option, equals, value = word.partition("=")
        if option not in _OPTIONS:
            continue
        name = value if equals else "".join(words[place + 1 : place + 2])
        file = start.code / name
        if not name.endswith(".json"):
            continue
        if not file.is_file():
            raise Refused(
                f"the command names the DeepSpeed configuration {name}, and there is no such file in the code"
            )
        with contextlib.suppress(ValueError):
            content = json.loads(file.read_text())
            if isinstance(content, Mapping):
                yield content


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
