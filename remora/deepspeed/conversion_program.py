"""Writes DeepSpeed's universal form of a checkpoint, with several processes: a program of its own.

    python -m remora.deepspeed.conversion_program SOURCE TARGET PROCESSES

SOURCE is a folder of DeepSpeed's files.  DeepSpeed's converter forks its processes, which is safe here: this one has no
threads of gloo or CUDA as a script has.  How it ended stands beside TARGET (`remora.deepspeed.conversion_process`).

Source: https://www.deepspeed.ai/tutorials/universal-checkpointing/
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from remora.deepspeed.conversion_process import LOCK_VARIABLE, OUTCOME


def main() -> None:
    """Convert, and write down how it ended."""
    source, target, processes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    if (lock := os.environ.get(LOCK_VARIABLE)) is not None:
        # A process of the pool that is left over must not look like this one.
        os.register_at_fork(after_in_child=lambda: os.close(int(lock)))
    # DeepSpeed's import is none of it.
    from deepspeed.checkpoint import ds_to_universal  # noqa: F401

    began = time.monotonic()
    refused = convert(source, target, processes)
    seconds = round(time.monotonic() - began, 3)
    draft = target.parent / f"{OUTCOME}.tmp"
    draft.write_text(json.dumps({"refused": refused, "seconds": seconds, "processes": processes}))
    draft.replace(target.parent / OUTCOME)


def convert(source: Path, target: Path, processes: int) -> str | None:
    """Write the universal form of a checkpoint's folder; a sentence where DeepSpeed cannot.

    Raises BrokenProcessPool when one of the processes was killed, and MemoryError.
    """
    from deepspeed.checkpoint.ds_to_universal import main as convert_with

    target.parent.mkdir(parents=True, exist_ok=True)
    wanted = argparse.Namespace(
        input_folder=str(source),
        output_folder=str(target),
        num_extract_workers=processes,
        num_merge_workers=processes,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    try:
        convert_with(wanted)
    except (BrokenProcessPool, MemoryError):
        raise
    except Exception as error:  # DeepSpeed's converter fails in many ways at layouts that it does not know.
        why = next(iter(str(error).splitlines()), "no reason is given")
        return (
            f"DeepSpeed cannot reshard this checkpoint for another number of workers ({type(error).__name__}: {why});"
            " start as many workers as wrote it"[:600]
        )
    return None


if __name__ == "__main__":
    main()
