"""What a job's specification and its code say of each other; client and service look alike."""

from __future__ import annotations

from typing import IO

from remora.code.texts import texts_of
from remora.commands.shell_files import check_scripts, scripts_of
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
    return spec.backend == "deepspeed" or any(scripts_of(spec.command))
