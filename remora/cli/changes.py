"""Commands with which owners change their jobs: `pause`, `resume`, `resize`, `clone`, `label`, `delete`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remora.cli import output
from remora.cli.options import JobArgument, JsonOption, ServerOption
from remora.cli.session import connect

if TYPE_CHECKING:
    from remora.views import Job


def json_or_text(text: str) -> Any:
    """A value as JSON, `5`, `0.1`, `true` or `[1, 2]`; anything else is the text itself."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def labels_of(words: Iterable[str], option: str) -> dict[str, str]:
    """Labels of `NAME=VALUE`.  Raises BadParameter."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            raise typer.BadParameter(f"{option} {word!r}: expected NAME=VALUE")
        found[name] = value
    return found


def pause(job: JobArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Pause a job: its workers end after a checkpoint, and it uses nothing until it is resumed."""
    with connect(server) as client:
        _say(client.pause(client.find(job).id), as_json=as_json)


def resume(job: JobArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Let a paused job go on from its newest checkpoint, when it is next in the queue."""
    with connect(server) as client:
        _say(client.resume(client.find(job).id), as_json=as_json)


def resize(
    job: JobArgument,
    workers: Annotated[
        str,
        typer.Argument(
            metavar="N|MIN:MAX", help="Number of workers; MIN: or :MAX changes one end.", show_default=False
        ),
    ],
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Change how many workers a job may have: a running one grows, or becomes smaller at its next step."""
    least, colon, most = workers.partition(":")
    ends = [least, most if colon else least]
    if not any(ends) or not all(one == "" or (one.isascii() and one.isdecimal()) for one in ends):
        raise typer.BadParameter(
            f"{workers!r}: expected a number such as 2, or a range such as 1:3, 2: or :3"
        )
    fewest, largest = (int(one[:9]) if one else None for one in ends)
    with connect(server) as client:
        answer = client.resize(client.find(job).id, min_workers=fewest, max_workers=largest)
    _say(answer, as_json=as_json)


def clone(
    job: JobArgument,
    values: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Another value, e.g. workers.max=4; repeat it."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the new job's id.")] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Submit a job again, with its code and other values for some of its fields."""
    changed: dict[str, Any] = {}
    for word in values or []:
        name, equals, text = word.partition("=")
        if not equals:
            raise typer.BadParameter(f"--set {word!r}: expected FIELD=VALUE, such as workers.max=4")
        changed[name] = json_or_text(text)
    with connect(server) as client:
        answer = client.clone(client.find(job).id, changed)
    if quiet:
        output.print_line(answer.id)
    else:
        _say(answer, as_json=as_json)


def _say(job: Job, *, as_json: bool) -> None:
    output.print_result(job, output.summary(job), as_json=as_json)


def label(
    job: JobArgument,
    words: Annotated[
        list[str],
        typer.Argument(metavar="NAME=VALUE...", help="Labels to set; NAME- removes one.", show_default=False),
    ],
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Set and remove labels of a job, also after its end."""
    removed = [word for word in words if "=" not in word and word.endswith("-")]
    wanted: dict[str, str | None] = {word[:-1]: None for word in removed}
    wanted.update(labels_of((word for word in words if word not in removed), "the label"))
    with connect(server) as client:
        answer = client.label(client.find(job).id, wanted)
    if as_json:
        output.print_json(answer)
    else:
        shown = " ".join(f"{name}={value}" for name, value in sorted(answer.labels.items()))
        output.print_line(f"{answer.id}  {shown or 'has no labels'}")


def delete(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB...", help="Ids of ended jobs, or the beginnings of ids.", show_default=False
        ),
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Delete ended jobs with their logs, metrics, checkpoints and outputs, for good."""
    with connect(server) as client:
        found = [client.find(job) for job in jobs]
        if not yes:
            if not sys.stdin.isatty():
                raise typer.BadParameter("there is no terminal to ask at; add --yes to do it")
            for one in found:
                output.say(output.summary(one))
            if not typer.confirm("Delete it for good?" if len(found) == 1 else "Delete them for good?"):
                raise typer.Abort
        deleted = [client.delete(one.id) for one in found]
    if as_json:
        output.print_json(deleted)
        return
    for gone in deleted:
        output.print_line(f"{gone.id}  {gone.name}  is deleted")
