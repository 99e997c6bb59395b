"""Commands on alerts: `alerts`, `alerts list`, `show`, `create`, `test`, `delete`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from remora.alert_kinds import AlertKind, Channel
from remora.cli import output
from remora.cli.jobs import duration_option
from remora.cli.options import JsonOption, ServerOption
from remora.cli.session import connect

if TYPE_CHECKING:
    from remora.alert_views import Alert

app = typer.Typer(help="Alerts: what the service notifies you of, and where.", no_args_is_help=True)

AlertArgument = Annotated[
    str, typer.Argument(metavar="ALERT", help="The id of an alert.", show_default=False)
]
#: Characters that are read of a URL.
_MOST = 4000
_KINDS = ", ".join(kind.value for kind in AlertKind)


@app.command(name="list")
def list_(as_json: JsonOption = False, server: ServerOption = None) -> None:
    """List your alerts and those of the projects that you administer, newest first."""
    with connect(server) as client:
        found = client.alerts()
    if as_json:
        output.print_json(found)
        return
    rows = ((one.id, _whose(one), ", ".join(one.kinds), one.address, _health(one)) for one in found)
    empty = (
        "There are no alerts. Create one with: remora alerts create --project P --on job_ended --webhook URL"
    )
    output.print_table(("id", "jobs", "kinds", "to", "state"), rows, empty)


@app.command()
def show(alert: AlertArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Show an alert with its newest notifications, and what became of each."""
    with connect(server) as client:
        found = client.alert(alert)
        sent = [] if as_json else client.notifications(alert, limit=50)
    if as_json:
        output.print_json(found)
        return
    output.print_pairs(
        [
            ("id", found.id),
            ("jobs", _whose(found)),
            ("kinds", ", ".join(found.kinds)),
            ("to", f"{found.channel.value} {found.address}"),
            ("owner", found.owner),
            ("state", _health(found)),
        ]
    )
    output.print_line("")
    rows = (
        (output.date(one.at) or "", one.state.value, str(one.tries), one.message, one.error or "")
        for one in sent
    )
    output.print_table(("time", "state", "tries", "message", "error"), rows, "There are no notifications.")


@app.command()
def create(
    on: Annotated[
        list[str],
        typer.Option(
            "--on", metavar="KIND", help=f"What is reported (repeat it): {_KINDS}.", show_default=False
        ),
    ],
    project: Annotated[
        str | None,
        typer.Option(
            "--project",
            metavar="NAME",
            help="The project; leave it out for the whole cluster, as an operator.",
            show_default=False,
        ),
    ] = None,
    all_jobs: Annotated[
        bool, typer.Option("--all-jobs", help="All jobs of the project, and not only yours (admins).")
    ] = False,
    webhook: Annotated[
        str | None,
        typer.Option(
            "--webhook", metavar="URL", help="Signed requests; - reads the URL.", show_default=False
        ),
    ] = None,
    slack: Annotated[
        str | None,
        typer.Option(
            "--slack",
            metavar="URL",
            help="An incoming webhook of Slack; - reads the URL.",
            show_default=False,
        ),
    ] = None,
    email: Annotated[
        str | None, typer.Option("--email", metavar="ADDRESS", help="E-mail.", show_default=False)
    ] = None,
    waits: Annotated[
        str | None,
        typer.Option(
            "--waits", metavar="DURATION", help="How long a job may wait: 30m, 1h.", show_default=False
        ),
    ] = None,
    percent: Annotated[
        list[int] | None,
        typer.Option(
            "--percent", metavar="N", help="A part of the budget that is reported.", show_default=False
        ),
    ] = None,
    slower: Annotated[
        float | None,
        typer.Option(
            "--slower", metavar="FACTOR", help="How much longer a step may take.", show_default=False
        ),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Create an alert; the secret of a webhook is printed once."""
    channel, target = _target(webhook, slack, email)
    wait_s = None if waits is None else duration_option(waits, "--waits")
    with connect(server) as client:
        made = client.create_alert(
            on,
            project=project,
            all_jobs=all_jobs,
            wait_s=wait_s,
            budget_percents=percent,
            slow_factor=slower,
            **{channel.value: target},
        )
    secret = "" if made.secret is None else f"\nIts secret, which is not shown again: {made.secret}"
    output.print_result(made, f"{made.id} notifies {made.address}.{secret}", as_json=as_json)


@app.command(name="test")
def send_test(alert: AlertArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Send a notification that reports nothing."""
    with connect(server) as client:
        sent = client.test_alert(alert)
    said = f"{sent.id} is on its way; remora alerts show {sent.alert_id} shows what becomes of it."
    output.print_result(sent, said, as_json=as_json)


@app.command()
def delete(alert: AlertArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Delete an alert: what was not sent yet is not sent any more."""
    with connect(server) as client:
        gone = client.delete_alert(alert)
    output.print_result(gone, f"{gone.id} is deleted.", as_json=as_json)


def _target(webhook: str | None, slack: str | None, email: str | None) -> tuple[Channel, str]:
    all_three = ((Channel.WEBHOOK, webhook), (Channel.SLACK, slack), (Channel.EMAIL, email))
    given = [(channel, target) for channel, target in all_three if target is not None]
    if len(given) != 1:
        raise typer.BadParameter("give one of --webhook, --slack and --email")
    ((channel, target),) = given
    # Other users of a machine see the arguments of processes, and a URL may be a secret.
    return channel, sys.stdin.readline(_MOST).strip() if target == "-" else target


def _whose(alert: Alert) -> str:
    if alert.project is None:
        return "the whole cluster"
    return f"{alert.project} ({alert.jobs})"


def _health(alert: Alert) -> str:
    if alert.ended_at is not None:
        return "ended: its receiver is gone"
    if alert.error is not None:
        return alert.error
    return "ok"
