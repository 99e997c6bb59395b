"""Options and arguments that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer


def complete_job(incomplete: str) -> list[str]:
    """Ids of the newest jobs for the shell; nothing when the service does not answer at once."""
    from remora.client.blocking import Client
    from remora.errors import RemoraError

    try:
        with Client(timeout_s=0.3, retry_s=0) as client:
            ids = ["last", *(job.id for job in client.jobs(limit=50))]
    except RemoraError:
        return []
    return [job_id for job_id in ids if job_id.startswith(incomplete)]


JobArgument = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A job's id, the beginning of one, or `last` for the newest job.",
        autocompletion=complete_job,
        show_default=False,
    ),
]
ServerOption = Annotated[
    str | None,
    typer.Option(
        "--server",
        metavar="URL",
        help="Address of the service; else REMORA_SERVER, a running `remora up`, or http://127.0.0.1:7265.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print JSON: one document, or one line per item of a stream.")
]
FollowOption = Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")]
RawOption = Annotated[
    bool,
    typer.Option("--raw", help="Print texts unchanged, with terminal escape sequences such as colours."),
]
InputOption = Annotated[
    list[str] | None,
    typer.Option(
        "--input", metavar="NAME=VALUE", help="Value of an Azure ML job's input, above the file's; repeat it."
    ),
]
