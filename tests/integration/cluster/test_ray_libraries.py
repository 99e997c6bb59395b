"""Ray Data, Tune and Serve get nodes from the one planner, and give them back; on a cluster that has none before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local.environment import process_environment
from tests.e2e.processes import until
from tests.integration.cluster.buying_cluster import BuyingCluster, buying_cluster
from tests.integration.cluster.ray_environment import use_ray_environment

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(580)]

#: Each node has two CPUs, and there may be three.
PROGRAMS = {
    # Two actors that fill a node each, beside tasks that read.
    "data": """
class Double:
    def __call__(self, batch):
        return {"id": batch["id"] * 2}
from ray.data import ActorPoolStrategy
numbers = ray.data.range(64, override_num_blocks=8)
doubled = numbers.map_batches(Double, compute=ActorPoolStrategy(size=2), num_cpus=2, batch_size=8).take_all()
assert sum(row["id"] for row in doubled) == 64 * 63
""",
    # Three trials that fill a node each.
    "tune": """
from ray import tune
def trial(config):
    tune.report({"score": config["x"]})
run = tune.RunConfig(storage_path=sys.argv[2], verbose=0)
asked = tune.with_resources(trial, {"cpu": 2})
found = tune.Tuner(asked, param_space={"x": tune.grid_search([1, 2, 3])}, run_config=run).fit()
assert found.get_best_result("score", "max").metrics["score"] == 3
""",
    # Two replicas that fill a node each.
    "serve": """
from ray import serve
@serve.deployment(num_replicas=2, ray_actor_options={"num_cpus": 2})
class Hello:
    def __call__(self):
        return "hello"
serve.start(http_options={"location": "NoServer"})
assert serve.run(Hello.bind(), route_prefix=None).remote().result() == "hello"
serve.shutdown()
""",
}
BEGIN = "import sys\nimport ray\nray.init(address=sys.argv[1], log_to_driver=False)\n"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BuyingCluster]:
    use_ray_environment(monkeypatch)
    with buying_cluster(tmp_path) as cluster:
        yield cluster


@pytest.mark.parametrize("library", list(PROGRAMS))
def test_a_library_of_ray_gets_nodes_and_they_are_given_back(
    cluster: BuyingCluster, tmp_path: Path, library: str
) -> None:
    assert cluster.nodes() == []
    log = tmp_path / "program.log"
    with log.open("w") as said:
        program = subprocess.Popen(
            [
                sys.executable,
                "-c",
                BEGIN + PROGRAMS[library],
                cluster.head.ray_address,
                str(tmp_path / "runs"),
            ],
            env=process_environment(cluster.home),
            stdout=said,
            stderr=subprocess.STDOUT,
        )
    bought: dict[str, str | None] = {}

    def has_ended() -> bool:
        bought.update({node.id: node.project for node in cluster.nodes()})
        return program.poll() is not None

    try:
        until(has_ended, "the program has ended", 240.0)
        assert program.returncode == 0, log.read_text()[-3000:]
        assert 2 <= len(bought) <= 3
        assert set(bought.values()) == {"ray"}
        until(lambda: cluster.nodes() == [], "they are given back", 240.0)
    finally:
        program.kill()
        program.wait()
