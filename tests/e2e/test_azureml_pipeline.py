"""A pipeline of Azure ML on real nodes: what one step writes, in each form of an output, is what the next one reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora import Client
from remora.states import JobState
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

PIPELINE = """\
type: pipeline
inputs:
  source: {type: uri_file, path: azureml://datastores/datasets/paths/words/a.txt}
jobs:
  read:
    command: cat ${{inputs.note}} ${{inputs.Table}}/t.txt ${{inputs.all}}/outputs/a.txt
    inputs:
      note: ${{parent.jobs.write.outputs.note}}
      Table: ${{parent.jobs.write.outputs.Table}}
      all: ${{parent.jobs.write.outputs.artifacts}}
  write:
    command: >-
      mkdir -p outputs && echo artifact > outputs/a.txt && echo table > ${{outputs.Table}}/t.txt
      && cp ${{inputs.source}} ${{outputs.note}}
    inputs: {source: "${{parent.inputs.source}}"}
    outputs: {note: {type: uri_file}, Table: , artifacts: }
"""


def test_a_step_reads_what_the_step_before_it_has_written(
    service: Embedded, client: Client, folder: Path
) -> None:
    (service.datasets / "words").mkdir(parents=True)
    (service.datasets / "words" / "a.txt").write_text("note\n")
    (folder / "pipeline.yml").write_text(PIPELINE)
    write, read = service.remora("submit", "--quiet", "pipeline.yml", folder=folder).out.split()
    ended = client.job(read).wait(PATIENCE_S)
    log = service.remora("logs", read).out
    assert ended.state is JobState.SUCCEEDED, log
    assert [line for line in log.splitlines() if line.startswith("[0]")] == [
        "[0] note",
        "[0] table",
        "[0] artifact",
    ]
    assert client.job(write).state is JobState.SUCCEEDED
