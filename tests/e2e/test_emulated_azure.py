"""`remora up` with an Azure that is played on this machine: it says where, buys what jobs need, and leaves nothing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from remora.states import EndReason, JobState
from tests.e2e.embedded import Embedded
from tests.e2e.processes import kill, until
from tests.e2e.raw_http import RawClient
from tests.integration.trainers.scripts import LOCKSTEP

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

EMULATOR = "cluster.azure.emulator"
POLICIES = """\
pools:
  gpu:
    sizes: [Standard_NC24ads_A100_v4]
    capacity: spot
    max_nodes: 4
"""
SPOT = """\
pools:
  cpu:
    sizes: [Standard_D4s_v5]
    capacity: spot
    max_nodes: 2
"""


@pytest.fixture(scope="module")
def shared_emulated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """The service with an emulated Azure; at the end nothing of it is left, of its machines neither."""
    service = Embedded(tmp_path_factory.mktemp("emulated") / "home", cloud="azure-emulated")
    try:
        service.start()
        yield service
    finally:
        service.end()


@pytest.fixture
def emulated(shared_emulated: Embedded) -> Embedded:
    """The same, without jobs."""
    # Before a test: what the last one leaves running has to end with the service.
    shared_emulated.tidy()
    return shared_emulated


def emulator_url(emulated: Embedded) -> str:
    """What `remora up` says last about where the emulator is."""
    return until(
        lambda: re.findall(r"emulator +ready after .*: (http\S+)", emulated.up_log.read_text()), "it says"
    )[-1]


def is_connected(emulated: Embedded, times: int) -> bool:
    """The controller has found its head, and before it its cloud, that number of times."""
    return emulated.log("controller").count("connected to the Ray head") >= times


def test_it_knows_the_sizes_of_azure_and_outlives_its_emulator(
    emulated: Embedded,
) -> None:
    url = emulator_url(emulated)
    assert RawClient(url).send("GET", "/control/state").status == 200
    until(lambda: is_connected(emulated, 1), "the controller uses the emulated cloud")

    shown = emulated.remora("policy", "show")
    assert "Standard_D4s_v5" in shown.out
    (emulated.home / "policies.yaml").write_text(POLICIES)
    assert emulated.remora("policy", "check", "policies.yaml").code == 0
    (emulated.home / "policies.yaml").write_text(POLICIES.replace("NC24ads", "NC24adz"))
    refused = emulated.remora("policy", "check", "policies.yaml")
    assert (refused.code, "did you mean Standard_NC24ads_A100_v4?" in refused.err) == (2, True)

    # The next emulator knows neither the machines nor the tokens of the last one: the controller starts again.
    kill(until(lambda: emulated.part(EMULATOR), "the emulator runs"))
    until(lambda: emulated.up_log.read_text().count("emulator   ready") == 2, "another one runs")
    assert emulator_url(emulated) == url
    until(lambda: is_connected(emulated, 2), "the controller uses it")

    assert RawClient(url).send("GET", "/control/state").json["machines"] == {}


def test_a_spent_budget_pauses_a_job_at_its_checkpoint_and_more_money_lets_it_go_on(
    emulated: Embedded, tmp_path: Path
) -> None:
    def follow(document: str) -> None:
        (emulated.home / "policies.yaml").write_text(document)
        applied = emulated.remora("policy", "apply", "policies.yaml", "--yes")
        assert applied.code == 0, applied.err

    pool = f"{SPOT}    drain_s: 15\n"
    follow(pool)
    (tmp_path / "train.py").write_text(LOCKSTEP)
    with emulated.client() as client:
        job = client.submit(
            {
                "code": str(tmp_path),
                "command": ["python", "train.py", "100000", "0.05"],
                "backend": "command",
                "resources": {"cpus": 4},
                "checkpoint": {"interval": "none"},
            }
        )
        until(lambda: client.job(job.id).step, "it trains")
        follow(f"{pool}budget: {{usd_per_day: 0.00001}}\n")
        paused = until(lambda: (now := client.job(job.id)).state is JobState.PAUSED and now, "it is paused")
        assert paused.checkpoint_step is not None, "nothing but the budget has asked for a checkpoint"
        shown = until(
            lambda: (said := emulated.remora("show", job.id).out).count("UTC") and said, "it says more"
        )
        assert re.search(r"state +paused\nreason +waiting_for_budget\n", shown), shown
        assert re.search(r"of 0.00 USD of the day are spent; it waits until .* 00:00:00 UTC", shown), shown
        assert "remora policy apply" in shown
        assert re.search(r"\npaused since +\d{4}-\d\d-\d\d ", shown), shown
        assert job.id in emulated.remora("list", "--state", "paused").out

        follow(f"{pool}budget: {{usd_per_day: 1000}}\n")
        until(lambda: client.job(job.id).state is JobState.RUNNING, "it goes on by itself")
        first, second = client.attempts(job.id)
        assert (first.end_reason, second.resumed_from_step) == (EndReason.EVICTED, paused.checkpoint_step)
        assert client.job(job.id).repeated_steps == 0


def test_a_drill_takes_a_spot_machine_as_azure_does_and_the_rest_ends_with_the_service(
    emulated: Embedded, tmp_path: Path
) -> None:
    cloud = RawClient(emulator_url(emulated))
    # Before, another test has killed the emulator under its controller.
    before = len(emulated.log("controller"))
    assert cloud.send("POST", "/control/knobs", b'{"notice_s": 8.0, "announce_s": 9.0}').status == 204
    (emulated.home / "policies.yaml").write_text(SPOT)
    applied = emulated.remora("policy", "apply", "policies.yaml", "--yes")
    assert applied.code == 0, applied.err
    (tmp_path / "train.py").write_text(LOCKSTEP)
    with emulated.client() as client:
        job = client.submit(
            {
                "code": str(tmp_path),
                "command": ["python", "train.py", "100000", "0.05"],
                "backend": "command",
                "workers": {"min": 1, "max": 2},
                "resources": {"cpus": 4},
                "checkpoint": {"interval": "1s"},
            }
        )
        until(lambda: client.job(job.id).world_size == 2, "two machines were bought and train")
        until(lambda: client.job(job.id).checkpoint_step, "there is a checkpoint to go back to")
        bought = emulated.ready_nodes()

        answer = emulated.remora("drill", "--node", bought[0], "--notice", "8s", "--json")
        assert answer.code == 0, answer.err
        (cost,) = answer.document["jobs"]
        assert (cost["job_id"], cost["repeated_steps"]) == (job.id, 0)
        assert (cost["workers_before"], cost["workers_least"], cost["workers"]) == (2, 1, 2)

    said = emulated.remora("nodes", bought[0]).out
    assert "node.drilled" in said
    assert re.search(r"node.draining .*Preempt", said), said
    # What is left running here must be gone at the end.
    machines = cloud.send("GET", "/control/state").json["machines"].values()
    assert {(one["size"], one["capacity"]) for one in machines} == {("Standard_D4s_v5", "spot")}
    assert bought[0] not in {one["node"] for one in machines}
    assert "Traceback" not in emulated.log("controller")[before:]
