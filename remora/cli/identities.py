"""Commands on identities: `login`, `logout`, `whoami`, `tokens`, `grants`, `audit`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.jobs import duration_option
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect

if TYPE_CHECKING:
    from remora.client.device_flow import Prompt
    from remora.client.sign_ins import StoredSignIn
    from remora.identity_views import AuditEntry, Token
    from remora.roles import Role

tokens_app = typer.Typer(help="API tokens: create, list and revoke them.", invoke_without_command=True)
grants_app = typer.Typer(help="Roles of users and groups in projects.", invoke_without_command=True)

#: Characters read from standard input as a token.
_MOST = 20_000

ProjectOption = Annotated[
    str | None,
    typer.Option("--project", metavar="NAME", help="The project; leave it out for the whole service."),
]
RoleOption = Annotated[
    str,
    typer.Option(
        "--role", metavar="ROLE", help="viewer, submitter, admin, or operator of the whole service."
    ),
]


def login(
    token: Annotated[
        str | None,
        typer.Option(
            "--token",
            metavar="-",
            help="- reads a token from standard input.",
            show_default=False,
        ),
    ] = None,
    issuer: Annotated[
        str | None,
        typer.Option(
            "--issuer",
            metavar="NAME",
            help="Where to sign in, if the service trusts several.",
            show_default=False,
        ),
    ] = None,
    server: ServerOption = None,
) -> None:
    """Sign in at the issuer that the service trusts, or store a token, for later commands.

    It is stored in a file that only you may read.
    """
    from remora.client.blocking import Client
    from remora.client.credentials import credentials_path, store_token

    if token not in (None, "-"):
        # Other users of a machine see the arguments of processes.
        raise typer.BadParameter("a token is no argument: write --token - and pipe it in, or leave it out")
    held = _read_token() if token == "-" else _signed_in(server, issuer)  # noqa: S105
    shown = held if isinstance(held, str) else held.token
    with Client(server, token=shown, retry_s=3.0) as client:
        found = client.whoami()
        url = client.server.url
    store_token(url, held)
    output.print_line(
        f"You are {output.printable(found.name)} ({found.id}) at {url}; stored in {credentials_path()}."
    )
    if os.environ.get("REMORA_TOKEN"):
        output.say("REMORA_TOKEN is set, and goes before what is stored.")


def _read_token() -> str:
    from remora.client.credentials import checked

    return checked(sys.stdin.read(_MOST), "what was read")


def _signed_in(server: str | None, name: str | None) -> str | StoredSignIn:
    """What a sign-in at an issuer gave, or a token that was asked for where the service trusts no issuer."""
    from remora.client.blocking import Client
    from remora.client.credentials import checked
    from remora.client.device_flow import DeviceFlow
    from remora.client.sign_ins import stored

    # What is stored may have ended, and would be refused.
    with Client(server, token="", retry_s=3.0) as client:
        issuers = {one.name: one for one in client.sign_in_ways().issuers}
    if name is None and not issuers:
        if not sys.stdin.isatty():
            raise typer.BadParameter("there is no terminal to ask at; pipe the token in with --token -")
        return checked(typer.prompt("Token", hide_input=True), "what was read")
    if name is None and len(issuers) == 1:
        (name,) = issuers
    if name not in issuers:
        said = "names no issuer" if name is None else f"{name!r} is none"
        trusted = ", ".join(sorted(issuers)) or "none, so that it takes its own tokens: --token -"
        raise typer.BadParameter(f"--issuer {said}; the service trusts {output.printable(trusted)}")
    with DeviceFlow(issuers[name]) as flow:
        return stored(issuers[name], flow.sign_in(_show_prompt))


def _show_prompt(prompt: Prompt) -> None:
    page, code = output.printable(prompt.page), output.printable(prompt.code)
    output.say(f"Open {page} and enter the code {code}; this command waits for it.")


def logout(server: ServerOption = None) -> None:
    """Forget the stored token of a service; the token itself stays good until it expires or is revoked."""
    from remora.client.credentials import store_token
    from remora.client.shell import find_server

    url = find_server(os.environ, server).url
    store_token(url, None)
    output.print_line(f"No token is stored for {url}.")


def whoami(as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Show who the service takes you for, and your roles."""
    with connect(server) as client:
        found = client.whoami()
    if as_json:
        output.print_json(found)
        return
    roles = "operator of the whole service" if found.is_operator else _roles(found.grants) or "none"
    needed = "nothing has to be proved here" if found.authentication == "none" else None
    output.print_pairs(
        [
            ("id", found.id),
            ("name", found.name),
            ("token", found.token_id),
            ("roles", roles),
            ("note", needed),
        ]
    )


@tokens_app.callback()
def tokens(context: typer.Context, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """List your tokens and those of the projects that you administer, newest first."""
    if context.invoked_subcommand is not None:
        return
    with connect(server) as client:
        found = client.tokens()
    if as_json:
        output.print_json(found)
        return
    rows = (
        (
            one.id,
            one.name,
            _roles(one.grants),
            _standing(one),
            output.date(one.last_used_at) or "never",
            one.created_by,
        )
        for one in found
    )
    columns = ("id", "name", "roles", "good until", "last used", "created by")
    output.print_table(columns, rows, "There are no tokens.")


@tokens_app.command()
def create(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="What it is for, for people.", show_default=False)
    ],
    role: RoleOption,
    project: Annotated[
        list[str] | None,
        typer.Option("--project", metavar="NAME", help="A project in which it has the role; repeat it."),
    ] = None,
    expires: Annotated[
        str, typer.Option("--expires", metavar="DURATION", help="For how long it is good; `never` for ever.")
    ] = "90d",
    owner: Annotated[
        str | None,
        typer.Option("--for", metavar="user:NAME", help="Whom it stands for; only operators say that."),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Create a token and print it; it is shown this once."""
    seconds = None if expires == "never" else duration_option(expires, "--expires")
    with connect(server) as client:
        made = client.create_token(name, _grants(role, project or []), expires_in_s=seconds, owner=owner)
    if as_json:
        output.print_json(made)
        return
    output.print_line(made.token)
    until = "for ever" if made.expires_at is None else f"until {output.date(made.expires_at)}"
    output.say(f"{made.id} is good {until}; store it now, it is not shown again.")


@tokens_app.command()
def revoke(
    token: Annotated[
        str, typer.Argument(metavar="ID", help="The id of a token, tok_...", show_default=False)
    ],
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Revoke a token: within five seconds it is good for nothing."""
    with connect(server) as client:
        found = client.revoke_token(token)
    output.print_result(found, f"{found.id}  {output.printable(found.name)}  is revoked", as_json=as_json)


@grants_app.callback()
def grants(context: typer.Context, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """List the roles of users and groups in the projects that you administer."""
    if context.invoked_subcommand is not None:
        return
    with connect(server) as client:
        found = client.grants()
    if as_json:
        output.print_json(found)
        return
    rows = (
        (one.project, one.subject, one.role, output.date(one.created_at) or "", one.created_by)
        for one in found
    )
    output.print_table(
        ("project", "subject", "role", "since", "given by"), rows, "No user or group has a role."
    )


SubjectArgument = Annotated[
    str, typer.Argument(metavar="SUBJECT", help="user:ISSUER/NAME or group:ISSUER/NAME.", show_default=False)
]


@grants_app.command()
def add(
    subject: SubjectArgument,
    role: RoleOption,
    project: ProjectOption = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Give a user or a group a role in a project, in place of the one that it has there."""
    ((place, given),) = _grants(role, [] if project is None else [project]).items()
    with connect(server) as client:
        found = client.put_grant(subject, place, given)
    output.print_result(found, f"{found.subject} is {found.role} of {_place(found.project)}", as_json=as_json)


@grants_app.command()
def remove(
    subject: SubjectArgument,
    project: ProjectOption = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Take the role of a user or a group in a project away; tokens keep theirs until they are revoked."""
    from remora.roles import EVERYWHERE

    with connect(server) as client:
        found = client.remove_grant(subject, project or EVERYWHERE)
    output.print_result(
        found, f"{found.subject} is no longer {found.role} of {_place(found.project)}", as_json=as_json
    )


def audit(
    project: ProjectOption = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Entries at most, the newest ones.")] = 100,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All entries that are kept.")] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Show who wrote what, when and from where, newest first; with --json one line for each write."""
    with connect(server) as client:
        found = client.audit(project=project, limit=None if everything else limit)
    if as_json:
        for one in found:
            output.print_json_line(one)
        return
    columns = ("at", "principal", "operation", "project", "object", "outcome", "from", "change")
    output.print_table(columns, map(_audit_row, found), "The audit is empty.")


def _audit_row(one: AuditEntry) -> tuple[str, ...]:
    change = ", ".join(f"{name}={value}" for name, value in (one.after or {}).items())[:80]
    at = output.date(one.at) or ""
    address = one.address or ""
    return at, one.principal, one.operation, one.project or "", one.object or "", one.outcome, address, change


def _grants(role: str, projects: Iterable[str]) -> dict[str, Role]:
    """Roles by project.  Raises BadParameter."""
    from remora.roles import EVERYWHERE, Role

    try:
        given = Role(role)
    except ValueError:
        raise typer.BadParameter(f"--role {role!r}: expected {', '.join(Role)}") from None
    places = list(projects)
    if given is Role.OPERATOR:
        if places:
            raise typer.BadParameter("an operator has all projects: leave --project out")
        return {EVERYWHERE: given}
    if not places:
        raise typer.BadParameter(f"name the project in which to be {given.value}: --project NAME")
    return dict.fromkeys(places, given)


def _roles(grants: Mapping[str, Role]) -> str:
    return ", ".join(f"{role.value} of {_place(project)}" for project, role in sorted(grants.items()))


def _place(project: str) -> str:
    return "the whole service" if project == "*" else project


def _standing(token: Token) -> str:
    if token.revoked_at is not None:
        return f"revoked {output.date(token.revoked_at)}"
    return "for ever" if token.expires_at is None else output.date(token.expires_at) or ""
