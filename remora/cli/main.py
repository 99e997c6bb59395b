"""`remora`: one command line for people and scripts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache

import typer

from remora.cli import (
    alerts,
    arrays,
    budgets,
    changes,
    cluster,
    conversion,
    costs,
    drill,
    exports,
    identities,
    jobs,
    local,
    models,
    plans,
    policies,
    profiles,
    projects,
    report,
    results,
    schedules,
    secrets,
    shells,
    stacks,
    submission,
    top,
)
from remora.cli.exits import HELP, ExitCode, code_of_error
from remora.cli.output import say
from remora.errors import RemoraError, SpecError

app = typer.Typer(
    name="remora",
    help="Elastic training on Ray: submit a job, watch it, fetch what it learned.",
    epilog=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    cluster.up,
    cluster.down,
    cluster.demo,
    local.dev,
    submission.submit,
    conversion.convert,
    jobs.list_jobs,
    jobs.show,
    jobs.logs,
    jobs.events,
    results.metrics,
    jobs.cancel,
    changes.pause,
    changes.resume,
    changes.resize,
    changes.clone,
    changes.label,
    changes.delete,
    jobs.wait,
    cluster.nodes,
    top.top,
    stacks.stacks,
    profiles.profile,
    shells.shell,
    drill.drill,
    plans.plan,
    results.checkpoints,
    results.download,
    exports.export,
    results.ledger,
    costs.goodput,
    budgets.budgets,
    report.report,
    models.outputs,
    projects.projects,
    cluster.prune,
    identities.login,
    identities.logout,
    identities.whoami,
    identities.audit,
    cluster.version,
):
    app.command("list" if command is jobs.list_jobs else None)(command)
app.callback()(cluster.options)
app.add_typer(arrays.app, name="arrays")
app.add_typer(schedules.app, name="schedules")
app.add_typer(alerts.app, name="alerts")
app.add_typer(models.app, name="models")
app.add_typer(local.env_app, name="env")
app.add_typer(policies.app, name="policy")
app.add_typer(secrets.app, name="secrets")
app.add_typer(cluster.pools_app, name="pools")
app.add_typer(plans.trace_app, name="trace")
app.add_typer(identities.tokens_app, name="tokens")
app.add_typer(identities.grants_app, name="grants")


def run(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit with its code; errors are one line on standard error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    sys.exit(_code_of(arguments))


@cache
def _command() -> Callable[..., object]:
    """All commands with their options, which takes longer to make than most of them take to run."""
    return typer.main.get_command(app)


def _code_of(arguments: Sequence[str] | None) -> int:
    try:
        code = _command()(arguments, standalone_mode=False)
    except RemoraError as error:
        _complain(error)
        return code_of_error(error)
    except typer.TyperException as error:  # wrong options
        if message := error.format_message():  # without one the help has been printed
            _say_error(message + _hint(message, sys.argv[1:] if arguments is None else arguments))
        return ExitCode.USAGE
    except typer.Abort:
        return ExitCode.DETACHED
    except BrokenPipeError:  # the reader, e.g. `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.ERROR
    except OSError as error:
        _say_error(str(error))
        return ExitCode.ERROR
    return code if isinstance(code, int) else ExitCode.OK


def _hint(message: str, arguments: Sequence[str]) -> str:
    """For an option that the job's own command may have been meant to get."""
    is_command = bool(arguments) and arguments[0] in ("submit", "dev", "shell") and "--" not in arguments
    if not is_command or not message.startswith("No such option"):
        return ""
    return (
        f"; options of the command itself stand behind --: remora {arguments[0]} -- python train.py --lr 0.1"
    )


def _complain(error: RemoraError) -> None:
    if isinstance(error, SpecError):
        for problem in error.problems:
            _say_error(str(problem))
    else:
        _say_error(str(error))


def _say_error(text: str) -> None:
    say(f"remora: {' '.join(text.split())}")
