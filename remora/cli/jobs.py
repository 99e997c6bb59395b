"""Commands on jobs: `list`, `show`, `logs`, `events`, `cancel`, `wait`."""

from __future__ import annotations

import json
import shlex
from typing import Annotated

import typer

from remora.cli import output
from remora.cli.exits import code_of_state
from remora.cli.options import FollowOption, JobArgument, JsonOption, RawOption, ServerOption
from remora.cli.session import connect, detaching
from remora.clusters import DEFAULT_CLUSTER
from remora.spec.quantities import format_duration, parse_duration
from remora.terminal_text import neutral


def list_jobs(
    state: Annotated[str | None, typer.Option("--state", help="Only jobs in this state.")] = None,
    project: Annotated[str | None, typer.Option("--project", help="Only jobs of this project.")] = None,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", "-l", metavar="NAME[=VALUE]", help="Only jobs with this label; repeat it."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most this many.")] = 50,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """List jobs, newest first."""
    with connect(server) as client:
        having = {name: value if equals else None for name, equals, value in map(_partition, label or [])}
        found = client.jobs(state=state, project=project, labels=having, limit=limit)
    if as_json:
        output.print_json(found)
        return
    columns = ("id", "name", "state", "step", "workers", "age", "message")
    rows = (
        (
            job.id,
            job.name,
            job.state,
            output.steps(job),
            str(job.world_size),
            output.age(job.created_at),
            job.message or job.reason or "",
        )
        for job in found
    )
    empty = "There are no jobs. Submit one: remora submit -- python train.py"
    said = "There are no such jobs." if state or project or label else empty
    output.print_by_cluster(columns, rows, [job.cluster for job in found], said)


def _partition(word: str) -> tuple[str, str, str]:
    return word.partition("=")


def show(job: JobArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Show one job and its attempts."""
    with connect(server) as client:
        found = client.find(job)
        attempts = [] if as_json else client.attempts(found.id)
    if as_json:
        output.print_json(found)
        return
    workers, entrypoint = found.spec.get("workers", {}), found.spec.get("entrypoint")
    after = [f"{one.get('when')} of {one.get('job')}" for one in found.spec.get("after") or []]
    output.print_pairs(
        [
            ("id", found.id),
            ("name", found.name),
            ("project", found.project),
            ("cluster", None if found.cluster == DEFAULT_CLUSTER else found.cluster),
            ("state", found.state),
            ("reason", found.reason),
            ("message", found.message),
            ("command", None if entrypoint else shlex.join(found.spec.get("command", []))),
            ("array", None if found.array is None else f"{found.array.array_id}, number {found.array.index}"),
            ("values", None if found.array is None else json.dumps(found.array.parameters)),
            ("entrypoint", entrypoint),
            ("arguments", json.dumps(found.spec.get("arguments")) if entrypoint else None),
            ("code", found.spec.get("code")),
            ("workers", f"{found.world_size} now, {workers.get('min')} to {workers.get('max')} wanted"),
            ("why not more", found.why_short),
            ("step", output.steps(found)),
            ("repeated steps", str(found.repeated_steps)),
            ("lost", f"{found.lost_s:.1f} s"),
            ("checkpoint", None if found.checkpoint_step is None else f"step {found.checkpoint_step}"),
            ("after", ", ".join(after) or None),
            ("priority", str(found.priority)),
            ("labels", " ".join(f"{name}={value}" for name, value in sorted(found.labels.items())) or None),
            ("resources", json.dumps(found.spec.get("resources"))),
            ("environment", attempts[-1].environment if attempts else None),
            ("submitted by", found.submitted_by),
            ("created", output.date(found.created_at)),
            ("started", output.date(found.started_at)),
            ("paused since", output.date(found.paused_at)),
            ("ended", output.date(found.ended_at)),
        ]
    )
    output.print_line("")
    rows = (
        (
            str(one.attempt),
            one.state,
            one.end_reason or "",
            "-" if one.exit_code is None else str(one.exit_code),
            "beginning" if one.resumed_from_step is None else f"step {one.resumed_from_step}",
            format_duration((one.ended_at or one.created_at) - one.created_at) if one.ended_at else "",
            one.message or "",
        )
        for one in attempts
    )
    columns = ("attempt", "state", "end", "exit code", "from", "took", "message")
    output.print_table(columns, rows, "No attempt yet.")


def cancel(job: JobArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """Cancel a job; it ends when its workers have stopped."""
    with connect(server) as client:
        answer = client.cancel(client.find(job).id)
    output.print_result(answer, output.summary(answer), as_json=as_json)


def wait(
    job: JobArgument,
    timeout: Annotated[
        str | None, typer.Option("--timeout", metavar="DURATION", help="Give up after, e.g. 90s or 2h.")
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Wait until a job has ended; the exit code says how it ended."""
    timeout_s = None if timeout is None else duration_option(timeout, "--timeout")
    with connect(server) as client:
        job_id = client.find(job).id
        with detaching(job_id, "wait"):
            ended = client.wait(job_id, timeout_s)
    output.print_result(ended, output.summary(ended), as_json=as_json)
    raise typer.Exit(code_of_state(ended.state))


def duration_option(text: str, option: str) -> float:
    """Seconds of an option such as `90s` or `90`.  Raises BadParameter."""
    try:
        return parse_duration(float(text) if text.replace(".", "", 1).isdecimal() else text)
    except ValueError as error:
        raise typer.BadParameter(f"{option} {text!r}: {error}") from None


def logs(
    job: JobArgument,
    follow: FollowOption = False,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="Only this worker.")] = None,
    attempt: Annotated[int | None, typer.Option("--attempt", min=1, help="Only this attempt.")] = None,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=1, help="Begin with the last N lines.")
    ] = None,
    contains: Annotated[
        str | None, typer.Option("--contains", metavar="TEXT", help="Only lines with this text in them.")
    ] = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Print what a job's workers printed, each line with its rank."""
    with connect(server) as client:
        job_id = client.find(job).id
        with detaching(job_id, "logs -f"):
            lines = client.logs(
                job_id, follow=follow, rank=rank, attempt=attempt, tail=tail, contains=contains
            )
            for line in lines:
                if as_json:
                    output.print_json_line(line)
                else:
                    origin = "remora" if line.stream == "remora" else str(line.rank)
                    shown = line.text if raw else neutral(line.text)
                    output.print_line(shown if rank is not None else f"[{origin}] {shown}", raw=raw)


def events(
    job: JobArgument,
    follow: FollowOption = False,
    tail: Annotated[
        int | None, typer.Option("--tail", "-n", min=1, help="Begin with the last N events.")
    ] = None,
    raw: RawOption = False,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Print what happened to a job."""
    with connect(server) as client:
        job_id = client.find(job).id
        with detaching(job_id, "events -f"):
            for event in client.events(job_id, follow=follow, tail=tail):
                if as_json:
                    output.print_json_line(event)
                else:
                    shown = event.message if raw else neutral(event.message)
                    output.print_line(f"{output.clock(event.at)}  {event.kind:24}  {shown}", raw=raw)
