"""Commands on the operators' policies: `policy show`, `check`, `apply`, `history` and `rollback`."""

from __future__ import annotations

import difflib
import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.exits import ExitCode
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect
from remora.errors import NotFound

if TYPE_CHECKING:
    from remora.client.blocking import Client
    from remora.views import Policy, PolicyCheck

app = typer.Typer(help="The operators' policies: pools, projects and the budget.", no_args_is_help=True)

#: Bytes that are read of a document; the service refuses one that is too large.
_MAX_BYTES = 2**20

FileArgument = Annotated[
    str,
    typer.Argument(
        metavar="FILE", help="A policy document in YAML or JSON; - is standard input.", show_default=False
    ),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")]
CommentOption = Annotated[
    str, typer.Option("--comment", "-m", metavar="TEXT", help="Why, for the history.", show_default=False)
]


@app.command()
def show(
    version: Annotated[
        int | None, typer.Argument(min=0, help="A version; else the one in force.", show_default=False)
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Print the policies in force, or an earlier version."""
    with connect(server) as client:
        policy = client.policy(version)
    if as_json:
        output.print_json(policy)
    else:
        output.say(_title(policy))
        output.print_line(policy.document.rstrip("\n"))


@app.command()
def check(file: FileArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Say everything that is wrong with a document, with its lines; nothing is changed."""
    document = _read(file)
    with connect(server) as client:
        checked = client.check_policy(document)
    if as_json:
        output.print_json(checked)
    elif not checked.problems:
        output.print_line("It is in force already." if checked.is_in_force else "It can be applied.")
        _say_notes(checked)
    _refuse(checked, silent=as_json)


@app.command()
def apply(
    file: FileArgument,
    yes: YesOption = False,
    comment: CommentOption = "",
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Show what a document changes and, after a yes, put it in force."""
    document = _read(file)
    with connect(server) as client:
        checked = client.check_policy(document)
        _refuse(checked)
        current = client.policy()
        if document == current.document:
            _print(current, "is in force already", as_json=as_json)
            return
        _show_changes(current.document, document, current.version, file, quiet=as_json)
        _say_notes(checked)
        _confirm("Apply this?", yes=yes, is_read=file == "-")
        policy = client.apply_policy(document, based_on=current.version, author=_author(), comment=comment)
    _print(policy, "is in force", as_json=as_json)


@app.command()
def history(as_json: JsonOption = False, server: ServerOption = None) -> None:
    """List all versions, newest first; version 0 is made from the service's settings."""
    with connect(server) as client:
        versions = client.policy_versions()
    if as_json:
        output.print_json(versions)
        return
    rows = (
        (
            str(one.version),
            (output.date(one.created_at) if one.created_at else None) or "",
            one.author,
            one.comment if one.restores is None else f"rollback to {one.restores}. {one.comment}".strip(),
            one.digest.removeprefix("sha256:")[:12],
        )
        for one in versions
    )
    output.print_table(("version", "applied", "by", "comment", "digest"), rows, "There are no policies.")


@app.command()
def rollback(
    version: Annotated[
        int | None,
        typer.Argument(min=0, help="A version; else the one before the newest.", show_default=False),
    ] = None,
    yes: YesOption = False,
    comment: CommentOption = "",
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Put an earlier version in force again, as a new version."""
    with connect(server) as client:
        current = client.policy()
        earlier = _earlier(client, current, version)
        if earlier.document == current.document:
            _print(current, f"says the same as version {earlier.version} already", as_json=as_json)
            return
        _show_changes(
            current.document, earlier.document, current.version, f"version {earlier.version}", quiet=as_json
        )
        _confirm(f"Go back to version {earlier.version}?", yes=yes, is_read=False)
        policy = client.roll_back_policy(
            earlier.version, based_on=current.version, author=_author(), comment=comment
        )
    _print(policy, f"is in force, with the document of version {earlier.version}", as_json=as_json)


def _earlier(client: Client, current: Policy, version: int | None) -> Policy:
    if version is not None:
        return client.policy(version)
    if not current.version:
        hint = "no other policies were applied yet"
        raise NotFound(404, "policies_not_found", "there is no version before 0", hint=hint)
    return client.policy(current.version - 1)


def _read(file: str) -> str:
    try:
        if file == "-":
            return sys.stdin.read(_MAX_BYTES)
        with Path(file).open("rb") as opened:
            return opened.read(_MAX_BYTES).decode("utf-8")
    except OSError as error:
        raise typer.BadParameter(f"cannot read {file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not text in UTF-8") from None


def _refuse(checked: PolicyCheck, *, silent: bool = False) -> None:
    """End the command with one line per problem, if there are any."""
    if not checked.problems:
        return
    for problem in () if silent else checked.problems:
        lines = " and ".join(map(str, problem.lines))
        where = f"line{'s' if len(problem.lines) > 1 else ''} {lines}: " if lines else ""
        field = f"{problem.field}: " if problem.field else ""
        output.say(output.printable(f"remora: {where}{field}{problem.message}"))
    raise typer.Exit(ExitCode.USAGE)


def _say_notes(checked: PolicyCheck) -> None:
    for note in checked.notes:
        output.say(output.printable(f"note: {note}"))


def _show_changes(before: str, after: str, version: int, name: str, *, quiet: bool) -> None:
    if quiet:
        return
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"version {version}", name, lineterm="", n=3
    )
    styles = {"+": "green", "-": "red", "@": "cyan"}
    console = output.console()
    for line in lines:
        console.print(output.printable(line), style=styles.get(line[:1], ""))


def _confirm(question: str, *, yes: bool, is_read: bool) -> None:
    """Ask at the terminal; without one the option is needed.  Ends the command after a no."""
    if yes:
        return
    if is_read or not sys.stdin.isatty():
        raise typer.BadParameter("there is no terminal to ask at; add --yes to do it")
    if not typer.confirm(question):
        output.say("Nothing was changed.")
        raise typer.Exit(ExitCode.ERROR)


def _author() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return ""


def _title(policy: Policy) -> str:
    by = f" by {policy.author}" if policy.author else ""
    when = f", applied {output.date(policy.created_at)}{by}" if policy.created_at else ""
    comment = f": {policy.comment}" if policy.comment else ""
    return output.printable(f"Version {policy.version}{when}{comment}")


def _print(policy: Policy, said: str, *, as_json: bool) -> None:
    output.print_result(policy, f"Version {policy.version} {said}.", as_json=as_json)
