"""A head that was taken over: its actors answer with code, and the process that asks them runs none of it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.local.environment import process_environment
from cluster.local.head import start_head, stop_head, wait_until_reachable
from cluster.local.records import MachineRecord

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

#: Writes the id of each process that unpickles its actor's class or answer into a file.
HOSTILE = """
import os, pathlib, sys
import ray
canary = pathlib.Path(sys.argv[2])

def trip(path, what):
    with open(path, "a") as file:
        file.write(f"{os.getpid()} {what}\\n")
    return 1

class Trap:
    def __init__(self, what):
        self.what = what
    def __reduce__(self):
        return trip, (str(canary), self.what)

class Driver:
    note = Trap("class")
    def values(self):
        return {"step": 3, "losses": [0.5, 0.25]}
    def code(self):
        return Trap("answer")
    def poll(self, after, limit):
        return Trap("answer")
    def raises(self):
        error = ValueError("no")
        error.note = Trap("error")
        raise error

ray.init(address=sys.argv[1], namespace="remora", log_to_driver=False)
actor = ray.remote(Driver).options(name="driver-hostile", lifetime="detached", num_cpus=0).remote()
ray.get(actor.values.remote())
from trainers import driver_actors
ray.get(driver_actors.make("driver-ours").poll.remote(0, 1))
"""

ASKING = """
import os, sys
import ray
if sys.argv[2] == "values":
    from cluster.ray.restricted_answers import accept_values_only
    accept_values_only()
ray.init(address=sys.argv[1], namespace="remora", log_to_driver=False)
from trainers import driver_actors
print(ray.get(driver_actors.find("driver-ours").poll.remote(0, 1)))
driver = ray.get_actor("driver-hostile")
print(ray.get(driver.values.remote()))
for ask in (driver.code, driver.raises):
    try:
        print(ray.get(ask.remote()))
    except Exception as error:
        print(type(error).__name__)
from trainers.launch import RayLauncher
for name in ("hostile", "ours"):
    driver_actors.give(f"attempt-{name}", f"driver-{name}")
launcher, answers = RayLauncher(timeout_s=60.0), {}
while "attempt-ours" not in answers:
    answers |= launcher.poll(["attempt-hostile", "attempt-ours"], {})
print(sorted(answers))
print(os.getpid())
"""


VALUES = "{'step': 3, 'losses': [0.5, 0.25]}"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def head(home: Path) -> Iterator[MachineRecord]:
    started = start_head(home)
    wait_until_reachable(home, started)
    yield started
    stop_head(home)


def run(home: Path, code: str, *words: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *words],
        env=process_environment(home),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


def test_a_process_that_accepts_values_only_runs_nothing_of_a_hostile_actor(
    home: Path, head: MachineRecord, tmp_path: Path
) -> None:
    canary = tmp_path / "canary"
    run(home, HOSTILE, head.ray_address, str(canary))

    *said, process = run(home, ASKING, head.ray_address, "values")
    assert said[:2] == ["None", VALUES], "a driver of ours is asked as ever"
    assert len(said) == 5
    assert said[-1] == "['attempt-ours']", "and is polled beside the hostile one"
    assert tripped(canary, process) == []

    *said, process = run(home, ASKING, head.ray_address, "anything")
    assert said[:2] == ["None", VALUES]
    assert sorted(set(tripped(canary, process))) == ["answer", "class", "error"]


def tripped(canary: Path, process: str) -> list[str]:
    """What this process has run of the hostile actor."""
    lines = [line.split() for line in canary.read_text().splitlines()]
    return [what for pid, what in lines if pid == process]
