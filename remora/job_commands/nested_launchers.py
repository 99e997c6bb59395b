"""What `torchrun`, `deepspeed` and `accelerate` are for a worker's command that starts them itself, as a shell does.

    python -I -m remora.job_commands.nested_launchers FEWEST MOST torchrun --nproc_per_node=4 train.py

Every worker runs the command, so that the launcher's part is done: the script runs in its place, as the one process of
this worker.  `FEWEST` and `MOST` are the workers of the job, with which the launcher's options must agree.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from remora.job_commands.launchers import STOOD_IN_FOR, check_count, describe, is_launch, unwrap

#: This module, by the name that it also has when it is the main one.
_MODULE = "remora.job_commands.nested_launchers"
#: The same for an interpreter that does not have it.
_FROM_FOLDER = (
    f"import sys; sys.path.insert(0, {{!r}}); from {_MODULE} import main; sys.exit(main(sys.argv[1:]))"
)
#: Exit codes: as for wrong options, and as a shell gives for a program that is not there.
_REFUSED, _NOT_FOUND = 2, 127


def put_on_path(
    folder: Path, python: str, fewest: int, most: int, path: str, public: Path | None = None
) -> dict[str, str]:
    """Make programs of these names in `folder`; returns the variables with which a command finds them first.

    `python` is an interpreter that has Remora, or finds it in the folder `public`; `path` is the PATH without them.
    A function of bash stands before every PATH, also before that of an environment which the command activates.
    """
    folder.mkdir()
    run = f"-m {_MODULE}" if public is None else f"-c {shlex.quote(_FROM_FOLDER.format(str(public)))}"
    variables = {"PATH": f"{folder}:{path}"}
    for name in STOOD_IN_FOR:
        line = f'{shlex.quote(python)} -I {run} {fewest} {most} {name} "$@"'
        program = folder / name
        program.write_text(f"#!/bin/sh\nexec {line}\n")
        program.chmod(0o755)
        variables[f"BASH_FUNC_{name}%%"] = f"() {{ {line}\n}}"
    return variables


def main(arguments: Sequence[str]) -> int:
    """Become the launcher's script; an exit code where that cannot be."""
    fewest, most, *command = arguments
    if not is_launch(command):
        return _become(command, _without_ours(os.environ.get("PATH", os.defpath), command[0]))
    try:
        unwrapped = unwrap(command)
        check_count(unwrapped, int(fewest), int(most))
    except ValueError as error:
        print(f"remora: {error}", file=sys.stderr)
        return _REFUSED
    if os.environ.get("RANK") == "0":
        print(f"remora: {describe(unwrapped)}", file=sys.stderr, flush=True)
    os.environ.update(unwrapped.variables)
    return _become(unwrapped.for_worker(int(os.environ.get("LOCAL_RANK", "0"))), None)


def _become(command: list[str], path: str | None) -> int:
    found = shutil.which(command[0], path=path)
    if found is not None:
        os.execv(found, command)  # noqa: S606 - that is what a launcher in a command is for
    print(f"remora: {command[0]}: no such program", file=sys.stderr)
    return _NOT_FOUND


def _without_ours(path: str, name: str) -> str:
    """The PATH behind the first folder with a program of that name, which is ours."""
    folders = path.split(os.pathsep)
    ours = next((at for at, folder in enumerate(folders) if _is_ours(Path(folder, name))), -1)
    return os.pathsep.join(folders[:ours] + folders[ours + 1 :] if ours >= 0 else folders)


def _is_ours(program: Path) -> bool:
    try:
        with program.open("rb") as file:
            return _MODULE.encode() in file.read(1000)
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
