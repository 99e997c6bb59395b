"""A job reads data of a store and what another job has made; both are on its nodes before its workers start."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora import Client
from remora.errors import Invalid
from remora.states import EndReason, JobState
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

MAKE = "import os, pathlib; (pathlib.Path(os.environ['REMORA_OUTPUTS_DIR']) / 'final' / 'w.txt').write_text('weights')"
READ = """
import os, pathlib, sys
data, model, mounted = map(pathlib.Path, sys.argv[1:])
print("rank", os.environ["RANK"], "reads", (data / "a/1.txt").read_text(), (model / "w.txt").read_text(), mounted)
print("variable", os.environ["DATA"] == str(data), "mounted", (mounted / "1.txt").read_text())
"""


def test_a_job_reads_a_store_and_the_output_of_the_job_before_it(
    service: Embedded, client: Client, folder: Path
) -> None:
    (service.datasets / "images/a").mkdir(parents=True)
    (service.datasets / "images/a/1.txt").write_text("pixels")
    first = client.submit({"command": ["python", "-c", MAKE], "outputs": {"final": {}}})
    (folder / "read.py").write_text(READ)
    second = client.submit(
        {
            "code": str(folder),
            "command": "python read.py ${{inputs.data}} ${{inputs.model}} ${{inputs.shared}}",
            "workers": 2,
            "inputs": {
                "data": {"store": "datasets", "path": "images"},
                "model": {"job": first.id, "output": "final"},
                "shared": {"store": "datasets", "path": "images/a", "mode": "mount"},
            },
            "environment": {"variables": {"DATA": "${{inputs.data}}"}},
            "after": first.id,
        }
    )
    ended = second.wait(PATIENCE_S)
    log = service.remora("logs", second.id).out
    assert ended.state is JobState.SUCCEEDED, log
    for rank in (0, 1):
        assert f"rank {rank} reads pixels weights {service.datasets / 'images/a'}" in log
    assert log.count("variable True mounted pixels") == 2


def test_an_input_that_is_not_there_ends_the_job_with_its_name(client: Client) -> None:
    job = client.submit({"command": "true", "inputs": {"data": {"store": "datasets", "path": "absent"}}})
    ended = job.wait(PATIENCE_S)
    assert (ended.state, ended.reason) == (JobState.FAILED, EndReason.START_FAILED)
    assert "inputs.data: there is no file at 'absent' in its store" in str(ended.message)
    with pytest.raises(Invalid, match=r"inputs\.data\.store: there is no store 'elsewhere'"):
        client.submit({"command": "true", "inputs": {"data": {"store": "elsewhere"}}})
