"""What a job's specification and its code say of each other; client and service look alike."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from typing import IO

from remora.bundle_texts import texts_of
from remora.errors import SpecError, SpecProblem
from remora.job_commands.launchers import refuse_started, unwrap
from remora.job_commands.started_commands import commands_in, started_by
from remora.spec.spec import JobSpec


def check_code(spec: JobSpec, bundle: IO[bytes]) -> None:
    """Raise SpecError, with every problem, when the code bundle holds what contradicts the specification."""
    if not needs_code(spec):
        return
    with texts_of(bundle) as read:
        problems = [*_missing_script(spec, read), *_launchers(spec, read), *_missing_requirements(spec, read)]
    if spec.backend == "deepspeed":
        problems += _deepspeed(spec, bundle)
    if problems:
        raise SpecError(problems)


def _missing_script(spec: JobSpec, read: Callable[[str], str | None]) -> Iterator[SpecProblem]:
    script = script_of(spec)
    if script is not None and read(script) is None:
        said = (
            f"there is no file {script!r} in the code; write its path relative to `code`, and check that no"
            " .gitignore or .remoraignore leaves it out"
        )
        yield SpecProblem("command", said)


def _launchers(spec: JobSpec, read: Callable[[str], str | None]) -> Iterator[SpecProblem]:
    try:
        check_scripts(spec.command, read)
    except ValueError as refused:
        yield SpecProblem("command", str(refused))


def _missing_requirements(spec: JobSpec, read: Callable[[str], str | None]) -> Iterator[SpecProblem]:
    file = spec.environment.requirements
    if file is None:
        return
    if read(posixpath.normpath(file)) is None:
        said = f"there is no file {file!r} in the code; write its path relative to `code`"
        yield SpecProblem("environment.requirements", said)
    project = posixpath.join(posixpath.dirname(posixpath.normpath(file)), "pyproject.toml")
    if file.endswith(".lock") and read(project) is None:
        said = f"there is no {project!r} in the code, to which {file!r} belongs; add it"
        yield SpecProblem("environment.requirements", said)


def _deepspeed(spec: JobSpec, bundle: IO[bytes]) -> Iterator[SpecProblem]:
    from remora.deepspeed.config_files import check_bundle
    from remora.deepspeed.refusal import Refused

    try:
        sizes = spec.worker_sizes
        check_bundle(bundle, spec.command, spec.elastic.global_batch, is_resizable=sizes.min < sizes.max)
    except Refused as refused:
        yield SpecProblem("command", str(refused))


def needs_code(spec: JobSpec) -> bool:
    """True when something in the code may contradict the specification."""
    is_listed = spec.environment.requirements is not None or script_of(spec) is not None
    return is_listed or spec.backend == "deepspeed" or any(scripts_of(spec.command))


#: Options of Python that take the next word.
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")


def script_of(spec: JobSpec) -> str | None:
    """The Python script of the code that the command starts, normalized; None where it starts something else.

    What lies in a folder of the job's outputs is there only when the job runs.
    """
    program, *words = unwrap(spec.command).command
    if not _PYTHON.fullmatch(posixpath.basename(program)):
        return None
    while words and words[0].startswith("-") and words[0] not in ("-m", "-c", "-"):
        del words[: 2 if words[0] in _WITH_VALUE else 1]
    if not words or words[0].startswith(("-", "/", "~")) or not words[0].endswith(".py") or "$" in words[0]:
        return None
    script = posixpath.normpath(words[0])
    made = [posixpath.normpath(one.path) for one in spec.outputs.values() if one.path is not None]
    is_made = any(script == path or script.startswith(f"{path}/") for path in made)
    return None if is_made or script.startswith("../") else script


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
