"""Alerts: facts become notifications, and these reach their receivers, on SQLite and on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from remora.states import JobState, NodeState
from service.queue.lifecycle import NodeDecision
from service.queue.rows import NodeRow
from service.store import nodes
from service.store.database import Database
from service.store.ids import new_id
from service.store.tables import alert_facts, alert_watches, alerts, notifications
from tests.contracts.service.alert_receivers import Receiver, receiver
from tests.contracts.service.buying import apply
from tests.contracts.service.owners import Owner, owner_of
from tests.service_fakes import World

pytestmark = pytest.mark.postgresql_in_soak


class Alerted:
    """An owner, and a receiver of what is reported."""

    def __init__(self, owner: Owner, receiver: Receiver) -> None:
        self.owner = owner
        self.receiver = receiver
        self.world = owner.world

    def create(self, *kinds: str, url: str | None = None, **fields: Any) -> dict[str, Any]:
        body = {"project": "default", "kinds": list(kinds), "webhook": url or f"{self.receiver.url}/hook"}
        answer = self.owner.client.post("/v1/alerts", json={**body, **fields})
        assert answer.status_code == 201, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def tick(self, count: int = 1) -> None:
        """Ticks, each of which ends when what it has sent was answered."""
        for _ in range(count):
            self.world.tick()
            self.world.controller.alerts.wait(20.0)

    def pass_time(self, seconds: float) -> None:
        """The controller keeps its lease meanwhile."""
        self.world.now += seconds
        self.world.controller.holder.step(self.world.now)

    def end(self, reason: str = "completed", **fields: Any) -> str:
        job_id = self.owner.submit(**fields)
        self.owner.run_until(job_id, JobState.ADMITTED)
        self.owner.end(job_id, reason)
        return job_id

    def rows(self, table: sa.Table) -> list[Any]:
        return self.world.database.query(lambda c: c.execute(sa.select(table)).all())

    def shown(self, alert: dict[str, Any]) -> list[dict[str, Any]]:
        answer = self.owner.client.get(f"/v1/alerts/{alert['id']}/notifications")
        found: list[dict[str, Any]] = answer.json()["items"]
        return found


@pytest.fixture
def alerted(database: Database, database_url: str, tmp_path: Path) -> Iterator[Alerted]:
    with (
        receiver() as made,
        owner_of(database, database_url, tmp_path, alert_hosts="127.0.0.1") as owner,
    ):
        yield Alerted(owner, made)
        owner.world.controller.alerts.close()


def test_the_end_of_a_job_reaches_a_webhook_with_a_signature(alerted: Alerted) -> None:
    alert = alerted.create("job_ended")
    job_id = alerted.end()
    alerted.tick(2)
    (request,) = alerted.receiver.received
    assert request.path == "/hook"
    assert request.is_signed_with(alert["secret"])
    assert not request.is_signed_with("whsec_" + "A" * 44)
    (event,) = alerted.owner.events(job_id, "job.succeeded")
    assert request.content["type"] == "job_ended"
    assert request.content["data"]["message"].endswith(event[1]), "the sentence of the event"
    assert request.content["data"]["job_id"] == job_id
    (shown,) = alerted.shown(alert)
    assert (shown["state"], shown["tries"], shown["id"]) == ("delivered", 1, request.id)
    alerted.tick(5)
    assert len(alerted.receiver.received) == 1
    assert alerted.rows(alert_facts) == []


class TestDelivery:
    def test_is_tried_again_with_the_same_id_until_it_is_taken(self, alerted: Alerted) -> None:
        alert = alerted.create("job_ended")
        alerted.receiver.answers += [500, -1, 429]
        alerted.end()
        for pause_s in (0.0, 5.0, 10.0, 20.0):
            alerted.pass_time(pause_s)
            alerted.tick(2)
        assert len(alerted.receiver.ids) == 4
        assert len(set(alerted.receiver.ids)) == 1
        stamps = [request.headers["webhook-timestamp"] for request in alerted.receiver.received]
        assert len(set(stamps)) == 4, "each try has its own time"
        assert all(request.is_signed_with(alert["secret"]) for request in alerted.receiver.received)
        (shown,) = alerted.shown(alert)
        assert (shown["state"], shown["tries"], shown["error"]) == ("delivered", 4, None)

    def test_waits_twice_as_long_after_each_failure(self, alerted: Alerted) -> None:
        alerted.create("job_ended")
        alerted.receiver.answers += [503] * 3
        alerted.end()
        alerted.tick(3)
        assert len(alerted.receiver.ids) == 1
        alerted.pass_time(3.0)
        alerted.tick(2)
        assert len(alerted.receiver.ids) == 1, "not before five seconds have passed"
        alerted.pass_time(2.0)
        alerted.tick(2)
        alerted.pass_time(6.0)
        alerted.tick(2)
        assert len(alerted.receiver.ids) == 2, "not before ten seconds more have passed"

    def test_is_in_order_and_the_next_waits_for_the_one_before(self, alerted: Alerted) -> None:
        alert = alerted.create("job_ended")
        alerted.receiver.answers += [500, 500]
        jobs = [alerted.end() for _ in range(3)]
        alerted.tick(2)
        assert [r.content["data"]["job_id"] for r in alerted.receiver.received] == jobs[:1]
        alerted.pass_time(6.0)
        alerted.tick(2)
        # All three are due, and the first one is refused again.
        assert [r.content["data"]["job_id"] for r in alerted.receiver.received] == jobs[:1] * 2
        alerted.pass_time(11.0)
        alerted.tick(3)
        assert [r.content["data"]["job_id"] for r in alerted.receiver.received] == [*jobs[:1] * 2, *jobs]
        assert [one["state"] for one in alerted.shown(alert)] == ["delivered"] * 3

    def test_ends_after_a_day_and_goes_on_with_what_is_younger(self, alerted: Alerted) -> None:
        alert = alerted.create("job_ended")
        alerted.receiver.answers += [500]
        old = alerted.end()
        alerted.tick(2)
        alerted.pass_time(86_401.0)
        new = alerted.end()
        alerted.tick(4)
        ids = [request.content["data"]["job_id"] for request in alerted.receiver.received]
        assert ids == [old, new]
        states = [(one["data"]["job_id"], one["state"]) for one in alerted.shown(alert)]
        assert states == [(new, "delivered"), (old, "failed")]

    def test_ends_for_ever_when_the_receiver_says_that_it_is_gone(self, alerted: Alerted) -> None:
        alert = alerted.create("job_ended")
        alerted.receiver.answers += [503, 410]
        alerted.end()
        alerted.tick(2)
        alerted.end()
        alerted.pass_time(6.0)
        alerted.tick(3)
        alerted.pass_time(9000.0)
        alerted.end()
        alerted.tick(3)
        assert len(alerted.receiver.ids) == 2
        assert [one["state"] for one in alerted.shown(alert)] == ["failed", "failed"]
        shown = alerted.owner.client.get(f"/v1/alerts/{alert['id']}").json()
        assert shown["ended_at"] is not None
        refused = alerted.owner.client.post(f"/v1/alerts/{alert['id']}/test")
        assert (refused.status_code, refused.json()["code"]) == (409, "alert_ended")

    def test_to_one_receiver_is_not_held_up_by_another_that_hangs(self, alerted: Alerted) -> None:
        with receiver() as slow:
            slow.answers.append(0)
            alerted.create("job_ended", url=f"{slow.url}/hook")
            alerted.create("job_ended")
            alerted.end()
            assert slow.arrived.acquire(timeout=20.0)
            alerted.end()
            for _ in alerted.world.ticks_until("both ends are reported"):
                if len(alerted.receiver.ids) == 2:
                    break
                alerted.receiver.arrived.acquire(timeout=5.0)
            assert len(slow.ids) == 1, "one request at a time"
            assert alerted.world.controller.alerts.is_busy
            slow.released.set()
            alerted.tick(6)
            assert len(set(slow.ids)) == 2

    def test_to_a_receiver_that_is_not_there_says_so_without_its_path(self, alerted: Alerted) -> None:
        with receiver() as gone:
            url = gone.url
        alert = alerted.create("job_ended", url=f"{url}/secret-path")
        alerted.end()
        alerted.tick(3)
        shown = alerted.owner.client.get(f"/v1/alerts/{alert['id']}").json()
        assert shown["failures"] == 1
        assert "cannot be reached" in shown["error"]
        assert "secret-path" not in alerted.owner.client.get("/v1/alerts").text

    def test_follows_no_redirect(self, alerted: Alerted) -> None:
        with receiver() as other:
            alerted.receiver.answers.append(f"{other.url}/stolen")
            alert = alerted.create("job_ended")
            alerted.end()
            alerted.tick(3)
            assert other.received == []
            assert alerted.shown(alert)[0]["error"] == "the receiver answered 302"

    def test_of_a_deleted_alert_ends(self, alerted: Alerted) -> None:
        alert = alerted.create("job_ended")
        alerted.receiver.answers.append(0)
        alerted.end()
        assert alerted.receiver.arrived.acquire(timeout=20.0)
        answer = alerted.owner.client.delete(f"/v1/alerts/{alert['id']}")
        assert answer.status_code == 200
        alerted.receiver.released.set()
        alerted.tick(3)
        assert alerted.rows(notifications) == []
        assert alerted.rows(alerts) == []


class TestKills:
    def test_between_sending_and_storing_sends_again_with_the_same_id(self, alerted: Alerted) -> None:
        """The process is killed while the receiver has the request already."""
        alert = alerted.create("job_ended")
        alerted.receiver.answers.append(0)
        alerted.end()
        assert alerted.receiver.arrived.acquire(timeout=20.0)
        # Nothing of the first controller is stored from here on.
        alerted.world.succeed()
        alerted.tick(3)
        assert len(alerted.receiver.ids) == 2
        assert len(set(alerted.receiver.ids)) == 1
        assert [one["state"] for one in alerted.shown(alert)] == ["delivered"]
        alerted.receiver.released.set()

    def test_of_a_controller_whose_lease_is_lost_store_nothing(self, alerted: Alerted) -> None:
        alert = alerted.create("job_ended")
        alerted.receiver.answers += [0, 500]
        alerted.end()
        assert alerted.receiver.arrived.acquire(timeout=20.0)
        first = alerted.world.controller
        alerted.world.succeed()
        alerted.tick(2)
        assert alerted.shown(alert)[0]["state"] == "pending", "the second one was answered 500"
        alerted.receiver.released.set()
        first.alerts.wait(20.0)
        first.tick(alerted.world.now)
        first.alert(lambda: alerted.world.now)
        assert alerted.shown(alert)[0]["state"] == "pending"
        alerted.pass_time(6.0)
        alerted.tick(2)
        assert alerted.shown(alert)[0]["state"] == "delivered"
        assert len(set(alerted.receiver.ids)) == 1
        first.alerts.close()

    def test_before_any_write_lose_nothing_and_double_nothing(self, alerted: Alerted) -> None:
        """The transaction of each write is rolled back once, that of the event itself among them."""
        alerted.create("job_ended", "straggler")
        ended: list[str] = []
        for number in range(1, 100):
            job_id = alerted.owner.submit()
            alerted.owner.run_until(job_id, JobState.ADMITTED)
            driver = alerted.world.launcher.driver_of(job_id)
            driver.report("event", kind="worker.straggles", message="Rank 0 is slow.", data={"rank": 0})
            driver.report("ended", end_reason="completed", message="It ended.", exit_code=None)
            with failing_at(alerted.world.database, number) as failed:
                alerted.tick(3)
            alerted.tick(3)
            ended.append(job_id)
            if not failed:
                break
        else:
            raise AssertionError("there is no end of writes")
        assert len(ended) > 8
        # What could not be marked as delivered was sent again with its id.
        sent = {r.id: (r.content["data"]["job_id"], r.content["type"]) for r in alerted.receiver.received}
        expected = [(job_id, kind) for job_id in ended for kind in ("job_ended", "straggler")]
        assert sorted(sent.values()) == sorted(expected)
        assert {row.state.value for row in alerted.rows(notifications)} == {"delivered"}
        assert len(alerted.rows(notifications)) == len(expected)


def watch_a_budget(alerted: Alerted) -> dict[str, Any]:
    """The project may spend 100 USD a day, and its alert reports a half, four fifths and all of it."""
    document = """\
pools: {cpu: {sizes: [local], capacity: on-demand, max_nodes: 2}}
projects: {vision: {usd_per_day: 100}}
"""
    apply(alerted.world, document)
    return alerted.create("budget", project="vision", budget_percents=[50, 80, 100])


def spend(world: World, usd: float) -> None:
    """A node has cost that in the last hour."""
    node = NodeRow(
        id=new_id("node", world.now),
        pool="cpu",
        state=NodeState.GONE,
        created_at=world.now - 3600.0,
        launched_at=world.now - 3600.0,
        ended_at=world.now,
        price_per_hour=usd,
        project="vision",
    )
    world.database.transact(lambda connection: nodes.insert_node(connection, NodeDecision(node, ())))


@contextmanager
def failing_at(database: Database, number: int) -> Iterator[list[str]]:
    """The given write, counted from 1, and with it its transaction, fails."""
    seen: list[str] = []
    failed: list[str] = []

    def fail(connection: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if statement.startswith(("INSERT", "UPDATE", "DELETE")) and " leases " not in statement:
            seen.append(statement)
            if len(seen) == number:
                failed.append(statement)
                raise RuntimeError("killed")

    sa.event.listen(database.engine, "before_cursor_execute", fail)
    try:
        yield failed
    finally:
        sa.event.remove(database.engine, "before_cursor_execute", fail)


def test_of_several_controllers_one_sends(alerted: Alerted) -> None:
    """Also of those of other clusters, and whichever has the lease."""
    alert = alerted.create("job_ended")
    second = alerted.world.new_controller()
    other = World(alerted.world.database, alerted.world.settings.model_copy(update={"cluster": "ward"}))
    job_ids = []
    for _ in range(3):
        job_ids.append(alerted.end())
        for _ in range(3):
            alerted.tick()
            second.tick(alerted.world.now)
            other.now = alerted.world.now
            other.tick()
    assert [r.content["data"]["job_id"] for r in alerted.receiver.received] == job_ids
    assert [one["tries"] for one in alerted.shown(alert)] == [1, 1, 1]
    for controller in (second, other.controller):
        controller.alerts.close()


class TestKinds:
    def test_a_job_that_waits_is_reported_once_for_each_wait(self, alerted: Alerted) -> None:
        alert = alerted.create("job_waits", wait_s=600.0)
        blocked = {"resources": {"gpus": 8}}
        job_id = alerted.owner.submit(**blocked)
        quick = alerted.owner.submit()
        alerted.owner.run_until(quick, JobState.ADMITTED)
        alerted.pass_time(590.0)
        alerted.tick(2)
        assert alerted.receiver.received == []
        alerted.pass_time(11.0)
        alerted.tick(2)
        alerted.pass_time(5000.0)
        # Also by another controller, after a restart.
        alerted.world.succeed()
        alerted.tick(3)
        (request,) = alerted.receiver.received
        message = request.content["data"]["message"]
        assert message.startswith(f"job train ({job_id}) has waited for 10 min: "), message
        assert message.endswith(str(alerted.owner.job(job_id).message))
        # It is paused and resumed: another wait.
        alerted.owner.ask(job_id, "pause")
        alerted.owner.ask(job_id, "resume")
        alerted.tick(2)
        alerted.pass_time(601.0)
        alerted.tick(3)
        assert len(alerted.shown(alert)) == 2
        assert alerted.rows(alert_watches) == []

    def test_a_job_that_waits_for_others_is_reported_for_its_own_wait_alone(self, alerted: Alerted) -> None:
        alerted.create("job_waits", wait_s=100.0)
        first = alerted.owner.submit()
        second = alerted.owner.submit(after=[{"job": first}], resources={"gpus": 8})
        alerted.owner.run_until(first, JobState.ADMITTED)
        for _ in range(3):
            alerted.pass_time(90.0)
            alerted.tick(2)
        alerted.owner.end(first)
        alerted.tick(3)
        began = alerted.world.now
        alerted.pass_time(90.0)
        alerted.tick(2)
        assert alerted.receiver.received == []
        alerted.pass_time(11.0)
        alerted.tick(2)
        (request,) = alerted.receiver.received
        assert request.content["data"]["job_id"] == second
        assert began - 2.0 <= request.content["data"]["details"]["since"] <= began

    def test_a_job_that_waited_before_the_alert_was_created_is_reported_too(self, alerted: Alerted) -> None:
        job_id = alerted.owner.submit(resources={"gpus": 8})
        alerted.tick(2)
        alerted.pass_time(400.0)
        alerted.create("job_waits", wait_s=600.0)
        alerted.pass_time(210.0)
        alerted.tick(2)
        assert [r.content["data"]["job_id"] for r in alerted.receiver.received] == [job_id]

    def test_a_job_that_trains_more_slowly_than_before_is_reported_once(self, alerted: Alerted) -> None:
        alert = alerted.create("job_slow", slow_factor=2.0)
        job_id = alerted.owner.submit()
        driver = alerted.owner.train(job_id)
        step = 0

        def train(minutes: int, steps: int) -> None:
            nonlocal step
            for _ in range(minutes):
                step += steps
                driver.report("metric", at=alerted.world.now, step=step, world_size=1, values={})
                alerted.pass_time(60.0)
                alerted.tick(1)

        train(20, 60)
        train(2, 20)
        train(10, 60)
        assert alerted.receiver.received == [], "some slow minutes are no reason"
        train(10, 20)
        (request,) = alerted.receiver.received
        assert "is slower than usual: a step takes 3" in request.content["data"]["message"]
        train(5, 60)
        train(5, 20)
        assert [one["kind"] for one in alerted.shown(alert)] == ["job_slow", "job_slow"]

    def test_events_of_jobs(self, alerted: Alerted) -> None:
        alert = alerted.create("job_failed", "straggler", "hang", "node_sick", "checkpoint_missed")
        job_id = alerted.owner.submit(retry={"limit": 0})
        driver = alerted.owner.train(job_id)
        for _ in range(2):
            driver.report("event", kind="worker.straggles", message="Rank 3 is slow.", data={"rank": 3})
            driver.report("event", kind="checkpoint.refused", message="No space.", data={"step": 7})
        driver.report("event", kind="worker.gpu_failed", message="Its GPU failed.", data={"rank": 1})
        driver.report("event", kind="training.resumed", message="On.", data={"step": 1})
        driver.report("event", kind="worker_group.hung", message="No step ended.", data={"quiet_s": 61.0})
        driver.report("ended", end_reason="hang", message="No step ended.", exit_code=None)
        alerted.tick(4)
        alerted.world.succeed()
        alerted.tick(4)
        kinds = [r.content["type"] for r in alerted.receiver.received]
        assert kinds[:4] == ["straggler", "checkpoint_missed", "node_sick", "hang"]
        assert kinds.count("hang") == 1, "the end of its attempt is the same hang"
        assert len(alerted.shown(alert)) == len(kinds) == len(set(alerted.receiver.ids))

    def test_a_part_of_a_budget_is_reported_once_in_its_period(self, alerted: Alerted) -> None:
        alert = watch_a_budget(alerted)
        day = 20 * 86_400.0
        alerted.pass_time(day - alerted.world.now)
        for usd in (40.0, 20.0, 10.0, 20.0, 40.0):
            alerted.pass_time(3600.0)
            spend(alerted.world, usd)
            alerted.world.succeed()
            alerted.tick(3)
        said = [one["data"]["percent"] for one in reversed(alerted.shown(alert))]
        assert said == [50, 80, 100]
        alerted.pass_time(24 * 3600.0)
        spend(alerted.world, 60.0)
        alerted.tick(3)
        periods = [(one["data"]["period"], one["data"]["percent"]) for one in alerted.shown(alert)]
        assert periods[0] == ("day 1970-01-22", 50)
        assert len(periods) == 4

    def test_what_was_spent_in_the_last_minute_of_a_day_is_reported_in_the_next_one(
        self, alerted: Alerted
    ) -> None:
        alert = watch_a_budget(alerted)
        midnight = 20 * 86_400.0
        alerted.pass_time(midnight - 30.0 - alerted.world.now)
        alerted.tick(3)
        assert alerted.shown(alert) == []
        alerted.pass_time(20.0)
        spend(alerted.world, 60.0)
        # No controller looks before midnight.
        alerted.world.now = midnight + 10.0
        alerted.pass_time(60.0)
        alerted.tick(3)
        (said,) = alerted.shown(alert)
        assert (said["data"]["period"], said["data"]["percent"]) == ("day 1970-01-20", 50)
        assert "of the day 1970-01-20" in said["message"]
