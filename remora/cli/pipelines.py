"""Submission of a pipeline: several jobs, of which some read what others write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import typer

from remora.cli import output
from remora.cli.session import connect

if TYPE_CHECKING:
    from remora.spec.pipeline_steps import PipelineStep
    from remora.views import Job, JobArray


def refuse_options_of_one(steps: Sequence[PipelineStep], of_one: Mapping[str, object]) -> None:
    """Raise BadParameter where one of the options that only one job can have has a value."""
    if given := [name for name, value in of_one.items() if value]:
        raise typer.BadParameter(f"{given[0]} is for one job, and this file has {len(steps)}")


def send_pipeline(
    steps: Sequence[PipelineStep],
    key: str | None,
    of_one: Mapping[str, object],
    *,
    quiet: bool,
    as_json: bool,
    server: str | None,
) -> None:
    """Submit all steps, and print the job of each; `of_one` are the options that only one job can have."""
    refuse_options_of_one(steps, of_one)
    from remora.client.pipeline_flow import is_refusal

    created: dict[str, Job | JobArray] = {}
    try:
        with connect(server, patient=False) as client:
            client.submit_pipeline(steps, idempotency_key=key, on_submitted=created.__setitem__)
    except BaseException as error:
        if created:
            what = (
                "are cancelled again"
                if is_refusal(error)
                else "go on; the same command again submits the others"
            )
            output.say(f"remora: {len(created)} of {len(steps)} steps were submitted, and {what}")
        raise
    needs = {step.name: step.needs for step in steps}
    if as_json:
        jobs = {name: one.model_dump(mode="json") for name, one in created.items()}
        output.print_json({"steps": jobs})
    elif quiet:
        for one in created.values():
            output.print_line(one.id)
    else:
        rows = ((name, one.id, ", ".join(needs[name]) or "-") for name, one in created.items())
        output.print_table(("step", "job", "after"), rows, "There are no steps.")
