"""Commands for what jobs leave behind: `outputs` and `models`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from remora.cli import output
from remora.cli.options import JobArgument, JsonOption, ServerOption
from remora.cli.session import connect
from remora.spec.quantities import format_size

if TYPE_CHECKING:
    from remora.views import ModelVersion

app = typer.Typer(help="Models: what succeeded jobs left in outputs with the key `model`.")


def outputs(
    job: JobArgument,
    download: Annotated[
        Path | None, typer.Option("--download", "-d", metavar="DIR", help="Copy them into this new folder.")
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """List the files that a job's script wrote into its outputs folder, or copy them."""
    with connect(server) as client:
        job_id = client.find(job).id
        files = client.download_outputs(job_id, download) if download else client.outputs(job_id)
    if as_json:
        output.print_json(files)
    elif download is not None:
        size = format_size(sum(file.size_bytes for file in files))
        output.print_line(f"{len(files)} files, {size}: {download}")
    else:
        rows = ((file.name, format_size(file.size_bytes), file.sha256[:12]) for file in files)
        output.print_table(("name", "size", "sha256"), rows, "The job has no outputs yet.")


@app.callback(invoke_without_command=True)
def models(context: typer.Context, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """List models, the newest version of each."""
    if context.invoked_subcommand is not None:
        return
    with connect(server) as client:
        _print(client.models(), as_json=as_json)


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of a model.", show_default=False)]


@app.command()
def versions(name: NameArgument, as_json: JsonOption = False, server: ServerOption = None) -> None:
    """List the versions of a model, newest first."""
    with connect(server) as client:
        _print(client.model_versions(name), as_json=as_json)


@app.command("download")
def download_model(
    model: Annotated[
        str,
        typer.Argument(
            metavar="NAME[:VERSION]", help="A model; by default its newest version.", show_default=False
        ),
    ],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to make.", show_default=False)],
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Copy a model's files into a new folder."""
    name, colon, version = model.partition(":")
    if colon and not (version.isascii() and version.isdecimal() and len(version) < 10):
        raise typer.BadParameter(f"{model!r}: expected NAME or NAME:VERSION, e.g. digits:2")
    with connect(server) as client:
        got = client.download_model(name, folder, version=int(version) if colon else None)
    if as_json:
        output.print_json(got)
    else:
        size = format_size(got.size_bytes)
        output.print_line(f"{got.name}:{got.version}, {len(got.files)} files, {size}: {folder}")


def _print(found: list[ModelVersion], *, as_json: bool) -> None:
    if as_json:
        output.print_json(found)
        return
    rows = (
        (
            one.name,
            str(one.version),
            format_size(one.size_bytes),
            output.date(one.created_at) or "",
            one.job_id,
            one.digest.removeprefix("sha256:")[:12],
        )
        for one in found
    )
    columns = ("name", "version", "size", "made", "job", "digest")
    output.print_table(columns, rows, "There is no model yet; see `outputs` in docs/job-spec.md.")
