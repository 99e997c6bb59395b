"""What the processes of a command are doing: the stacks of their Python threads, read from outside.

py-spy reads the memory of a process without stopping it, so nothing has to be prepared inside, and a process that hangs
in a collective or is stopped by a signal shows its stack like any other.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import psutil

_SHIM = Path(__file__).with_name("command_shim.py")
#: Seconds that reading one process may take.
_READ_S = 5.0
#: Processes of one command that are looked at: its own, and the first ones that it started.
_MOST = 4
#: Characters of all stacks together.
_LENGTH = 16_000


def stacks_below(pid: int, clean: Callable[[str], str] = str) -> str:
    """Stacks of the processes below `pid`, the oldest first; a sentence for each that cannot be read.

    Each text passes through `clean` before it is shortened.
    """
    try:
        below = [one for one in psutil.Process(pid).children(recursive=True) if not _is_shim(one)]
    except psutil.NoSuchProcess:
        below = []
    if not below:
        return "The command does not run any more."
    texts = [_stack_of(process, clean) for process in below[:_MOST]]
    if len(below) > _MOST:
        texts.append(f"{len(below) - _MOST} more processes of this command are left out.")
    return clean("\n\n".join(texts))[:_LENGTH]


def _is_shim(process: psutil.Process) -> bool:
    """Where there are no cgroups a shim has another one above it."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return False
    was_forked = bool(words) and words[0].startswith("command_shim.py for ")
    return was_forked or (words[1:3] == ["-S", "-E"] and words[3:4] == [str(_SHIM)])


def _stack_of(process: psutil.Process, clean: Callable[[str], str]) -> str:
    try:
        head = f"Process {process.pid} ({process.status()}): {clean(' '.join(process.cmdline()))[:200]}"
    except psutil.Error:
        return f"Process {process.pid} has ended."
    try:
        read = subprocess.run(
            [str(_py_spy()), "dump", "--nonblocking", "--pid", str(process.pid)],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_READ_S,
            check=False,
            env={"PATH": os.environ.get("PATH", "")},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{head}\nIts stack cannot be read: {error}"
    if read.returncode != 0:
        why = next((line for line in read.stderr.splitlines() if line.strip()), "py-spy says nothing")
        return f"{head}\nIts stack cannot be read: {why.removeprefix('Error: ')}"
    # Its first lines name the process and the interpreter.
    threads = read.stdout.partition("\n\n")[2].strip()
    return f"{head}\n{threads}"


def _py_spy() -> Path:
    return Path(sys.executable).with_name("py-spy")
