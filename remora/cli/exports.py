"""The command `export`: a checkpoint as files that other programs read."""

from __future__ import annotations

import contextlib
import importlib.util
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from remora.cli import output
from remora.cli.options import JsonOption, ServerOption, complete_job
from remora.cli.session import connect
from remora.errors import ConfigurationError
from remora.export_formats import DEFAULT_SHARD_BYTES, ExportFormat, config_names
from remora.installation import install_command
from remora.spec.quantities import format_size, parse_size

if TYPE_CHECKING:
    from remora.client.blocking import Client
    from remora.views import Checkpoint, MetricPoint


def export(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FOLDER", help="Folder to make.")],
    job: Annotated[
        str | None,
        typer.Argument(
            metavar="[JOB]",
            help="A job's id, the beginning of one, or `last` for the newest job.",
            autocompletion=complete_job,
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option("--from", metavar="FOLDER", help="A downloaded checkpoint, in place of a job."),
    ] = None,
    which: Annotated[
        str,
        typer.Option("--checkpoint", metavar="STEP|best|latest", help="Which of the job's checkpoints."),
    ] = "latest",
    form: Annotated[ExportFormat, typer.Option("--format", help="What to write.")] = ExportFormat.SAFETENSORS,
    max_shard_size: Annotated[
        str, typer.Option(metavar="SIZE", help="Most bytes of a file of tensors.")
    ] = f"{DEFAULT_SHARD_BYTES // 10**9}GB",
    config: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where config.json stands, for huggingface."),
    ] = None,
    as_json: JsonOption = False,
    server: ServerOption = None,
) -> None:
    """Write a checkpoint as a folder that safetensors, torch.distributed.checkpoint or transformers load."""
    from remora.client.downloads import new_folder

    max_bytes = _bytes_of(max_shard_size)
    if (job is None) == (source is None):
        raise typer.BadParameter("name a job, or a folder with a checkpoint by --from")
    if importlib.util.find_spec("torch") is None:
        raise ConfigurationError(
            f"export reads checkpoints with PyTorch, which is not installed here: {install_command('torch')}"
        )
    with new_folder(out) as target, contextlib.ExitStack() as stack:
        if source is None:
            assert job is not None
            beside = stack.enter_context(_scratch_beside(out))
            found, own_config = _download(job, which, form, beside, server)
            name, folder, config = f"step {found.step}", beside / "checkpoint", config or own_config
        elif not source.is_dir():
            raise ConfigurationError(f"{source} is no folder")
        else:
            name, folder = str(source), source
        # It imports PyTorch, which takes seconds.
        from remora.torch.exporting import export_checkpoint

        exported = export_checkpoint(folder, target, form, max_shard_bytes=max_bytes, config=config)
    _show(name, out, form, exported, as_json=as_json)


def _bytes_of(text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise typer.BadParameter(f"--max-shard-size {text!r}: {error}") from error


@contextlib.contextmanager
def _scratch_beside(out: Path) -> Iterator[Path]:
    """A folder on the disk that the export goes to, which is the one with space for it."""
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.absolute().parent) as folder:
        yield Path(folder)


def _download(
    job: str, which: str, form: ExportFormat, folder: Path, server: str | None
) -> tuple[Checkpoint, Path | None]:
    """Put a checkpoint into `folder`/checkpoint; the folder with the model's description among the outputs, if any."""
    with connect(server) as client:
        job_id = client.find(job).id
        found = client.download(job_id, folder / "checkpoint", step=_step(client, job_id, which))
        described = {}
        if form is ExportFormat.HUGGINGFACE:
            described = config_names(one.name for one in client.outputs(job_id))
        if not described:
            return found, None
        client.download_outputs(job_id, folder / "outputs", names=set(described.values()))
    config = folder / "config"
    config.mkdir()
    for name, path in described.items():
        (folder / "outputs" / path).rename(config / name)
    return found, config


def _step(client: Client, job_id: str, which: str) -> int | None:
    """The step of the checkpoint that was asked for; None for the newest one."""
    if which == "latest":
        return None
    if which.isascii() and which.isdecimal() and len(which) < 17:
        return int(which)
    if which != "best":
        raise typer.BadParameter(f"--checkpoint {which!r}: expected a step, best, or latest")
    best = (client.job(job_id).spec.get("checkpoint") or {}).get("best")
    if not best:
        raise ConfigurationError(
            "the job names no metric by which its best checkpoint is chosen (checkpoint.best): name a step"
        )
    kept = [one.step for one in client.checkpoints(job_id)]
    step = best_step(kept, client.metrics(job_id), best)
    if step is None:
        raise ConfigurationError(f"no checkpoint of the job has a value of {best['metric']}: name a step")
    return step


def best_step(kept: Iterable[int], points: Iterable[MetricPoint], best: Mapping[str, Any]) -> int | None:
    """The step with the best value among those of kept checkpoints, of equal ones the newest; None: none has one.

    `best`: `metric`, its name, and `mode`, `min` or `max`, as in a job's specification.
    """
    sign = 1.0 if best.get("mode") == "max" else -1.0
    values = {point.step: point.values.get(best["metric"]) for point in points}
    scored = [(sign * value, step) for step in kept if (value := values.get(step)) is not None]
    return max(scored)[1] if scored else None


def _show(name: str, out: Path, form: ExportFormat, exported: Any, *, as_json: bool) -> None:
    """Print what was written, and how it is loaded; `exported` is an `Exported`, whose module imports PyTorch."""
    load = exported.load.replace("FOLDER", str(out))
    size = sum(exported.files.values())
    document = {
        "from": name,
        "format": str(form),
        "folder": str(out),
        "files": exported.files,
        "size_bytes": size,
        "notes": list(exported.notes),
        "load": load,
    }
    text = f"{name}, {len(exported.files)} files, {format_size(size)}: {shlex.quote(str(out))}"
    output.print_result(document, text, as_json=as_json)
    if not as_json:
        for note in exported.notes:
            output.say(f"Note: {note}")
        output.say(f"Load it: {load}")
