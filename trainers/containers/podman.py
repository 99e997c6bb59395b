"""Runs podman on a node."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from trainers.environments.commands import EnvironmentFailed, TimeLimit, program_variables, run_program


def run_podman(
    failure: str,
    words: list[str],
    limit: TimeLimit,
    take: Callable[[str], None] = lambda _: None,
    *,
    with_errors: bool = False,
) -> list[str]:
    """Run podman with these words; returns the last lines of its standard output.

    `take` is called with every line, with `with_errors` also with those of its standard error.
    Raises EnvironmentFailed, which begins with `failure` and has podman's last lines.
    """
    program = shutil.which("podman")
    if program is None:
        raise EnvironmentFailed(
            "the node has no podman, which runs images: install podman there, or leave environment.image out"
        )
    return run_program(
        failure,
        [program, *words],
        Path("/"),
        program_variables(os.environ),
        limit,
        take,
        with_errors=with_errors,
    )
