"""What a job's specification and its code say of each other; client and service look alike."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from remora.code.texts import texts_of
from remora.commands.launchers import refuse_started
from remora.commands.started_commands import commands_in, started_by
from remora.errors import SpecError, SpecProblem
from remora.spec.spec import JobSpec


def check_code(spec: JobSpec, bundle: IO[bytes]) -> None:
    """Raise SpecError when the code bundle holds what contradicts the specification."""
    if any(scripts_of(spec.command)):
        try:
            with texts_of(bundle) as read:
                check_scripts(spec.command, read)
        except ValueError as refused:
            raise SpecError([SpecProblem("command", str(refused))]) from None
    if (file := spec.environment.requirements) is not None:
        with texts_of(bundle) as read:
            if read(posixpath.normpath(file)) is None:
                said = f"there is no file {file!r} in the code; write its path relative to `code`"
                raise SpecError([SpecProblem("environment.requirements", said)])
            project = posixpath.join(posixpath.dirname(posixpath.normpath(file)), "pyproject.toml")
            if file.endswith(".lock") and read(project) is None:
                said = f"there is no {project!r} in the code, to which {file!r} belongs; add it"
                raise SpecError([SpecProblem("environment.requirements", said)])
    if spec.backend == "deepspeed":
        _check_deepspeed(spec, bundle)


def _check_deepspeed(spec: JobSpec, bundle: IO[bytes]) -> None:
    from remora.deepspeed.config_files import check_bundle
    from remora.deepspeed.refusal import Refused

    try:
        check_bundle(bundle, spec.command, spec.elastic.global_batch)
    except Refused as refused:
        raise SpecError([SpecProblem("command", str(refused))]) from None


def needs_code(spec: JobSpec) -> bool:
    """True when something in the code may contradict the specification."""
    is_listed = spec.environment.requirements is not None
    return is_listed or spec.backend == "deepspeed" or any(scripts_of(spec.command))


#: Characters of a script that are looked at.
_LOOKED_AT = 64 * 1024


def check_scripts(command: Sequence[str], read: Callable[[str], str | None]) -> None:
    """Raise ValueError, in one sentence, for a launcher in such a script that would start in every worker.

    `read` gives the text of a file by its normalized name below the code, and None where there is none.
    """
    for name in scripts_of(command):
        for started in commands_in((read(name) or "")[:_LOOKED_AT]):
            refuse_started(f"{name} in the code", started)
            for _, inner in started_by(started):
                refuse_started(f"{name} in the code", inner)


def scripts_of(command: Sequence[str]) -> Iterator[str]:
    """Names of files below the code that may be such scripts, normalized."""
    texts = [
        word
        for started in (list(command), *(one for _, one in started_by(list(command))))
        for word in started
    ]
    for name in dict.fromkeys(posixpath.normpath(word) for word in texts if word.endswith((".sh", ".bash"))):
        if not name.startswith(("/", "..")):
            yield name
