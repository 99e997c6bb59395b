"""`remora up` with an Azure that is played on this machine: it says where, buys what jobs need, and leaves nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.embedded import Embedded
from tests.e2e.processes import kill, until
from tests.e2e.raw_http import Door

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

EMULATOR = "cluster.azure.emulator"
POLICIES = """\
pools:
  gpu:
    sizes: [Standard_NC24ads_A100_v4]
    capacity: spot
    max_nodes: 4
"""


@pytest.fixture
def emulated(tmp_path: Path) -> Iterator[Embedded]:
    """The service with an emulated Azure; at the end nothing of it is left."""
    service = Embedded(tmp_path / "home", cloud="azure-emulated")
    try:
        service.start()
        yield service
    finally:
        service.end()


def emulator_url(service: Embedded) -> str:
    """What `remora up` says last about where the emulator is."""
    return until(
        lambda: re.findall(r"emulator +ready after .*: (http\S+)", service.up_log.read_text()), "it says"
    )[-1]


def is_connected(service: Embedded, times: int) -> bool:
    """The controller has found its head, and before it its cloud, so many times."""
    return service.log("controller").count("connected to the Ray head") >= times


def test_it_knows_the_sizes_of_azure_outlives_its_emulator_and_ends_with_machines_running(
    emulated: Embedded,
) -> None:
    url = emulator_url(emulated)
    assert Door(url).send("GET", "/control/state").status == 200
    until(lambda: is_connected(emulated, 1), "the controller uses the emulated cloud")

    shown = emulated.remora("policy", "show")
    assert "Standard_D4s_v5" in shown.out
    (emulated.home / "policies.yaml").write_text(POLICIES)
    assert emulated.remora("policy", "check", "policies.yaml").code == 0
    (emulated.home / "policies.yaml").write_text(POLICIES.replace("NC24ads", "NC24adz"))
    refused = emulated.remora("policy", "check", "policies.yaml")
    assert (refused.code, "did you mean Standard_NC24ads_A100_v4?" in refused.err) == (2, True)

    # The next emulator knows neither the machines nor the tokens of the last one: the controller begins anew.
    kill(until(lambda: emulated.part(EMULATOR), "the emulator runs"))
    until(lambda: emulated.up_log.read_text().count("emulator   ready") == 2, "another one runs")
    assert emulator_url(emulated) == url
    until(lambda: is_connected(emulated, 2), "the controller uses it")

    # What is left running here must be gone at the end.
    assert Door(url).send("GET", "/control/state").json["machines"] == {}
    job = emulated.remora("submit", "-q", "--no-code", "--", "sleep", "3600")
    assert job.code == 0, job.err
    (node,) = until(emulated.ready_nodes, "a machine was bought for the job, and joined")
    machines = Door(url).send("GET", "/control/state").json["machines"].values()
    assert [(one["node"], one["size"]) for one in machines] == [(node, "Standard_D4s_v5")]
    assert "Traceback" not in emulated.log("controller")
