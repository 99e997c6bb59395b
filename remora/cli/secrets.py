"""Commands on the secrets of projects: `secrets set`, `list`, `delete`, `rotate`; no value is ever an argument."""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import Annotated

import typer

from remora.cli import output
from remora.cli.exits import ExitCode
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect

app = typer.Typer(
    help="Secrets of projects, which their jobs name in `environment.secrets`.", no_args_is_help=True
)

#: Bytes that are read of a value; the service refuses one that is too large.
_MAX_BYTES = 2**20

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of a secret.", show_default=False)
]
ProjectOption = Annotated[str, typer.Option("--project", metavar="PROJECT", help="The project that has it.")]


@app.command(name="set")
def set_(
    name: NameArgument,
    project: ProjectOption = "default",
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE", help="Read the value from a file.", show_default=False),
    ] = None,
    key_vault: Annotated[
        str | None,
        typer.Option(
            "--key-vault",
            metavar="URL",
            help="Read it from Azure Key Vault at each attempt: https://NAME.vault.azure.net/secrets/SECRET.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Store a secret, whose value is read from standard input, or asked for on a terminal."""
    if from_file is not None and key_vault is not None:
        raise typer.BadParameter("give either --from-file or --key-vault")
    value = None if key_vault is not None else _value(name, from_file)
    with connect(server) as client:
        stored = client.set_secret(name, value, key_vault=key_vault, project=project, author=_author())
    output.print_result(
        stored,
        f"{stored.name} of the project {stored.project} has version {stored.version}.",
        as_json=as_json,
    )


@app.command(name="list")
def list_(
    project: ProjectOption = "default", as_json: JsonOption = False, server: ServerOption = None
) -> None:
    """List the secrets of a project; values are never shown."""
    with connect(server) as client:
        found = client.secrets(project)
    if as_json:
        output.print_json(found)
        return
    rows = (
        (one.name, str(one.version), one.source, output.date(one.updated_at) or "", one.updated_by)
        for one in found
    )
    empty = (
        f"The project {project} has no secrets. Store one with: remora secrets set NAME --project {project}"
    )
    output.print_table(("name", "version", "source", "updated", "by"), rows, empty)


@app.command()
def delete(
    name: NameArgument,
    project: ProjectOption = "default",
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Delete a secret: jobs that use it cannot start any more."""
    with connect(server) as client:
        deleted = client.delete_secret(name, project=project)
    output.print_result(
        deleted, f"{deleted.name} of the project {deleted.project} is deleted.", as_json=as_json
    )


@app.command()
def rotate(as_json: JsonOption = False, server: ServerOption = None) -> int:
    """Encrypt the secrets of all projects with a new key; one that was interrupted is brought to its end instead."""
    with connect(server) as client:
        done = client.rotate_secrets()
    if as_json:
        output.print_json(done)
    else:
        how = "An interrupted rotation was brought to its end: " if done.is_resumed else ""
        output.print_line(f"{how}{done.rewritten} secrets were encrypted with the key {done.key_id}.")
        for one in done.unreadable:
            output.say(f"{one} cannot be decrypted and stays as it is; set it again")
    return ExitCode.ERROR if done.unreadable else ExitCode.OK


def _value(name: str, file: Path | None) -> str:
    """The value; a line break at the end of a single line is none of it."""
    try:
        if file is not None:
            with file.open("rb") as opened:
                content = opened.read(_MAX_BYTES)
        elif sys.stdin.isatty():
            return getpass.getpass(f"{name}: ")
        else:
            content = sys.stdin.buffer.read(_MAX_BYTES)
        text = content.decode("utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file or 'standard input'}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(
            f"{file or 'standard input'} is not text in UTF-8; encode it, e.g. with base64"
        ) from None
    line = text.rstrip("\r\n")
    return text if "\n" in line else line


def _author() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""
