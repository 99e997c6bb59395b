"""Commands that do on this machine what a node would do: `dev`, `env`."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path
from typing import Annotated, Any

import typer

from remora.cli.submission import read_words
from remora.installation import server_command

env_app = typer.Typer(
    name="env",
    help="Environments of jobs on this machine.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
Words = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE | -- COMMAND...",
        help="A specification, or a command with the current folder as its code.",
    ),
]
CodeOption = Annotated[
    Path | None, typer.Option("--code", metavar="DIR", help="Folder of the code; else the current folder.")
]
PipOption = Annotated[
    list[str] | None, typer.Option("--pip", metavar="PACKAGE", help="Package for the environment; repeat it.")
]
RequirementsOption = Annotated[
    str | None,
    typer.Option("--requirements", metavar="FILE", help="File in the code that lists requirements."),
]
PythonOption = Annotated[str | None, typer.Option("--python", metavar="VERSION", help="Version of Python.")]


def dev(
    words: Words,
    code: CodeOption = None,
    pip: PipOption = None,
    requirements: RequirementsOption = None,
    python: PythonOption = None,
    steps: Annotated[
        int, typer.Option("--steps", min=1, help="End the command after this number of reported steps.")
    ] = 1,
) -> None:
    """Try a job here, without a service: its code, its environment, and its command for a step."""
    spec = _spec(words, code, pip, requirements, python)
    raise typer.Exit(_run_here("run", "--steps", str(steps), spec=spec))


@env_app.command("build")
def build(
    words: Words,
    code: CodeOption = None,
    pip: PipOption = None,
    requirements: RequirementsOption = None,
    python: PythonOption = None,
) -> None:
    """Build the environment of a job here, as a node would."""
    raise typer.Exit(_run_here("build", spec=_spec(words, code, pip, requirements, python)))


@env_app.command("list")
def list_environments() -> None:
    """List the environments that this machine keeps, those used last first."""
    raise typer.Exit(_run_here("list"))


@env_app.command("prune")
def prune_environments(
    keep: Annotated[int, typer.Option("--keep", min=0, help="Environments that stay, those used last.")] = 0,
) -> None:
    """Remove environments that nothing uses."""
    raise typer.Exit(_run_here("prune", "--keep", str(keep)))


def _spec(
    words: list[str],
    code: Path | None,
    pip: list[str] | None,
    requirements: str | None,
    python: str | None,
) -> dict[str, Any]:
    """The checked specification.  Raises SpecError."""
    environment = {"pip": pip or None, "requirements": requirements, "python": python}
    return read_words(words, code, environment).to_mapping()


def _run_here(*words: str, spec: dict[str, Any] | None = None) -> int:
    """Run a part of the service with the specification as its input; returns its exit code."""
    command, variables = server_command("service.local_run", *words)
    written = "" if spec is None else json.dumps(spec)
    with subprocess.Popen(command, env=variables, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(written)
            process.stdin.close()
        while True:
            # Ctrl-C reaches it too, and it ends the command first.
            with contextlib.suppress(KeyboardInterrupt):
                return process.wait()
