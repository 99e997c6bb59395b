"""An attempt on GPUs that ends when a node of it is found to be sick uses up no retry, on SQLite and PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.ray.heartbeats import AgentStatus, Heartbeat
from remora.states import EndReason, JobState, NodeState
from service.queue.sick_exits import JOINED_S
from service.settings import Settings
from service.store.database import Database
from tests.service_fakes import FakeDriver, World
from trainers.plan import DriverGone

pytestmark = pytest.mark.postgresql_in_soak

SICK = AgentStatus(
    heartbeat=Heartbeat(at=1.0, leaves="this machine is sick: XID 79 on 0000:3b:00", is_sick=True)
)
SIGABRT = "The command of rank 0 was ended by SIGABRT."


class OfMachines(Settings):
    """Of a cloud whose nodes run agents."""

    @property
    def nodes_have_agents(self) -> bool:
        """They do."""
        return True


@pytest.fixture
def world(database: Database, tmp_path: Path) -> World:
    """Two nodes with a GPU each."""
    return with_two_nodes(database, OfMachines(home=tmp_path, nodes=2, node_cpus=1, node_gpus=1, lease_s=5.0))


def with_two_nodes(database: Database, settings: Settings) -> World:
    made = World(database, settings)
    for _ in made.ticks_until("two ready nodes"):
        if [node.state for node in made.nodes()] == [NodeState.READY] * 2:
            break
    return made


def started(world: World, **fields: object) -> tuple[str, FakeDriver]:
    job_id = world.submit(retry_limit=0, **{"worker_resources": {"CPU": 1.0, "GPU": 1.0}, **fields})
    for _ in world.ticks_until("the job is admitted"):
        if world.job(job_id).state is JobState.ADMITTED:
            break
    driver = world.launcher.driver_of(job_id)
    address = str(world.nodes()[0].address)
    driver.report("progress", at=world.now, state="running", world_size=1, workers={address: 1})
    return job_id, driver


def sicken(world: World) -> None:
    node = world.nodes()[0]
    world.cluster.agents[node.id] = SICK
    for _ in world.ticks_until("the node is sick"):
        if world.nodes()[0].sick_since is not None:
            break


def end(world: World, driver: FakeDriver, message: str = SIGABRT, reason: str = "signal") -> None:
    """As a driver ends: without workers first."""
    driver.report("progress", at=world.now, state="running", world_size=0, workers={})
    driver.report("ended", at=world.now, end_reason=reason, message=message, exit_code=None)


@pytest.mark.parametrize("report_first", [True, False])
def test_whichever_comes_first_no_retry_is_used_up(world: World, report_first: bool) -> None:
    job_id, driver = started(world)
    world.tick()
    if report_first:
        sicken(world)
    end(world, driver)
    world.tick()
    if not report_first:
        assert world.attempts(job_id)[0].ended_at is None, "the report may still come"
        world.now += JOINED_S / 2
        sicken(world)
    for _ in world.ticks_until("the attempt ends"):
        if world.attempts(job_id)[0].ended_at is not None:
            break
    attempt, job = world.attempts(job_id)[0], world.job(job_id)
    assert attempt.end_reason is EndReason.NODE_LOST
    assert str(attempt.message).startswith(
        "The command of rank 0 was ended by SIGABRT; its node 127.0.1.1 is sick"
    )
    assert job.state is not JobState.FAILED
    assert (job.user_failures, job.losses) == (0, 1)


def test_without_a_report_it_is_the_scripts_fault_after_a_minute(world: World) -> None:
    job_id, driver = started(world)
    end(world, driver)
    world.tick()
    assert world.attempts(job_id)[0].ended_at is None
    world.now += JOINED_S
    world.tick()
    attempt, job = world.attempts(job_id)[0], world.job(job_id)
    assert (attempt.end_reason, job.state, job.reason) == (EndReason.SIGNAL, JobState.FAILED, "signal")


@pytest.mark.parametrize("is_sick", [True, False])
def test_a_driver_that_is_lost_while_its_end_waits_does_not_take_the_end_with_it(
    world: World, is_sick: bool
) -> None:
    job_id, driver = started(world)
    world.tick()
    end(world, driver)
    world.tick()
    driver.gone = DriverGone(EndReason.DRIVER_LOST, "the driver died")
    world.succeed()
    world.tick()
    assert world.attempts(job_id)[0].ended_at is None, "the report may still come"
    world.now += JOINED_S / 2
    if is_sick:
        sicken(world)
    world.now += JOINED_S / 2
    world.tick()
    attempt, job = world.attempts(job_id)[0], world.job(job_id)
    assert attempt.held_end is None
    if is_sick:
        assert (attempt.end_reason, job.user_failures) == (EndReason.NODE_LOST, 0)
    else:
        assert (attempt.end_reason, attempt.message) == (EndReason.SIGNAL, SIGABRT)
        assert (job.state, job.reason) == (JobState.FAILED, "signal")


def test_a_node_that_is_drained_as_sick_takes_the_blame_until_it_has_gone(world: World) -> None:
    job_id, driver = started(world)
    world.tick()
    sicken(world)
    world.now += 1.5 * JOINED_S
    end(world, driver)
    world.tick()
    assert world.attempts(job_id)[0].end_reason is EndReason.NODE_LOST


def test_an_end_that_waits_is_not_stopped_for_the_time_that_it_would_use(world: World) -> None:
    job_id, driver = started(world, run_time_s=10.0)
    world.tick()
    end(world, driver)
    world.tick()
    world.now += JOINED_S / 2
    world.tick()
    assert world.attempts(job_id)[0].stop_reason is None
    world.now += JOINED_S / 2
    world.tick()
    assert world.attempts(job_id)[0].end_reason is EndReason.SIGNAL


def test_where_no_agent_runs_nothing_waits_for_its_report(database: Database, tmp_path: Path) -> None:
    world = with_two_nodes(database, Settings(home=tmp_path, nodes=2, node_cpus=1, node_gpus=1, lease_s=5.0))
    job_id, driver = started(world)
    end(world, driver)
    world.tick()
    assert world.job(job_id).state is JobState.FAILED


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("ended with exit code 1: torch.OutOfMemoryError: CUDA out of memory", {}),
        ("ended with exit code 1: ValueError: 3 is not 4", {}),
        (SIGABRT, {"worker_resources": {"CPU": 1.0}}),
    ],
)
def test_an_error_that_no_gpu_makes_is_not_held(
    world: World, message: str, fields: dict[str, object]
) -> None:
    job_id, driver = started(world, **fields)
    end(world, driver, message, "exit_code" if "exit code" in message else "signal")
    world.tick()
    assert world.job(job_id).state is JobState.FAILED


def test_a_job_that_is_cancelled_meanwhile_waits_for_no_report(world: World) -> None:
    job_id, driver = started(world)
    end(world, driver)
    world.tick()
    world.cancel(job_id)
    world.tick()
    assert world.job(job_id).state is JobState.CANCELLED
