"""Nodes build the environments of jobs that wait, beside the work that they have."""

from __future__ import annotations

import psutil
import pytest

from tests.integration.trainers.lab import Lab, until
from trainers.builds_ahead import BuildsAhead
from trainers.environments.request import EnvironmentRequest
from trainers.plan import BuildAhead

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(300)]

FILES = {"train.py": "import marker; print('built', marker.WHEN)"}
#: Adds a module to the environment.
SETUP = """
packages=$(python -c "import sysconfig; print(sysconfig.get_path('purelib'))")
echo "WHEN = 'ahead'" > "$packages/marker.py"
"""


def preparation(lab: Lab, node: str, setup: str) -> BuildAhead:
    request = EnvironmentRequest(setup=setup)
    # A build that is kept apart sees no folder of a test.
    return BuildAhead("job_waits", request, lab.bundle(FILES), str(lab.storage), (node,), "none")


def test_a_job_whose_environment_was_built_while_the_node_was_busy_builds_nothing(lab: Lab) -> None:
    (node,) = lab.nodes(1)
    busy = lab.run({}, "sleep", "600", min_workers=1, max_workers=1)
    busy.until(lambda: busy.progress.get("state") == "running", "the node is busy")
    wanted = preparation(lab, node, SETUP)
    builds = BuildsAhead()

    def is_built() -> bool:
        builds.look([wanted])
        return bool(lab.environments(node))

    until(is_built, "the environment is built")
    busy.close()
    lab.nodes(1)
    waited = lab.run(FILES, "python", "train.py", min_workers=1, max_workers=1, environment=wanted.request)
    waited.end()
    assert "built ahead" in waited.text()
    (ready,) = waited.events("environment.ready")
    assert ready["data"]["build_s"] == 0


def test_a_build_that_no_job_waits_for_any_more_ends_and_one_that_failed_is_not_tried_again(lab: Lab) -> None:
    (node,) = lab.nodes(1)
    marker = "61843.25"
    builds, endless = BuildsAhead(), preparation(lab, node, f"sleep {marker}")

    def sleeping() -> list[psutil.Process]:
        return [
            one for one in psutil.process_iter(["cmdline"]) if (one.info["cmdline"] or [])[-1:] == [marker]
        ]

    until(lambda: (builds.look([endless]), sleeping())[1], "it builds")
    tries = lab.new_path("tries")
    failing = preparation(lab, node, f"echo x >> {tries}; false")
    until(lambda: (builds.look([failing]), not sleeping())[1], "it ends when nothing waits for it")
    until(lambda: (builds.look([failing]), builds.is_idle)[1], "the other one has failed")
    for _ in range(3):
        builds.look([failing])
        assert builds.is_idle
    assert tries.read_text() == "x\n"
