"""Several Ray clusters under one service: each controller leads its own, on SQLite and on PostgreSQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy import event

from cluster.scheduling.queue_order import WAITS_FOR_NODES
from cluster.traces.lines import read_lines
from remora.states import JobState, NodeState
from service.controller.controller import OF_CLUSTER, OF_SERVICE, Controller
from service.queue.rows import DrillRow, RayRequestRow, WaitKind, WaitRow
from service.store import cloud, drills, leases, ledger, ray_requests, sick_reports, waits
from service.store import jobs as job_store
from service.store.clusters_in_use import clusters_in_use
from service.store.database import Database
from service.store.ids import new_id
from service.store.sick_reports import SickReport
from service.store.tables import jobs, metadata
from service.store.trace_history import history_since
from tests.contracts.service.buying import apply
from tests.contracts.service.owners import Owner, owner_of
from tests.service_fakes import World
from tests.statements import statements

pytestmark = pytest.mark.postgresql_in_soak

DOCUMENT = """\
pools:
  cpu: {sizes: [local], capacity: on-demand, max_nodes: 2}
  locked: {sizes: [local], capacity: on-demand, max_nodes: 2, cluster: ward}
projects:
  open: {share: 2}
  patients: {cluster: ward, share: 1}
"""
#: The same after the project was moved.
MOVED = DOCUMENT.replace("patients: {cluster: ward, ", "patients: {")


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    """A service whose own world is that of the first cluster."""
    with owner_of(database, database_url, tmp_path) as made:
        apply(made.world, DOCUMENT)
        yield made


@pytest.fixture
def ward(owner: Owner) -> World:
    """The world of the second cluster: other nodes, other drivers, a controller of its own."""
    return world_of(owner, "ward")


def world_of(owner: Owner, cluster: str) -> World:
    return World(owner.world.database, owner.world.settings.model_copy(update={"cluster": cluster}))


def together(*worlds: World, count: int = 1) -> None:
    """Ticks of all controllers, at the same times."""
    for _ in range(count):
        now = max(world.now for world in worlds)
        for world in worlds:
            world.now = now
            world.tick()


def until(*worlds: World, done: Callable[[], bool]) -> None:
    for _ in range(200):
        if done():
            return
        together(*worlds)
    raise AssertionError("200 ticks passed")


def contents(database: Database) -> dict[str, list[Any]]:
    """All rows, but for the leases, which controllers renew."""
    tables = [table for table in metadata.sorted_tables if table.name != "leases"]

    def read(connection: sa.Connection) -> dict[str, list[Any]]:
        return {table.name: sorted(map(repr, connection.execute(sa.select(table)))) for table in tables}

    return database.query(read)


def report(world: World, job_id: str) -> None:
    """The job's driver has a worker group."""
    addresses = [node.address for node in world.nodes() if node.state is NodeState.READY]
    workers = {str(addresses[0]): 1}
    driver = world.launcher.driver_of(job_id)
    driver.report("progress", at=world.now, state="running", world_size=1, workers=workers)


class TestJobs:
    @pytest.mark.parametrize("order", ["in order", "oldest first"])
    def test_run_on_the_cluster_of_their_project_and_on_no_other(
        self, owner: Owner, ward: World, order: str
    ) -> None:
        both = owner.world, ward
        if order == "oldest first":
            apply(owner.world, DOCUMENT.replace("share: 2", "").replace(", share: 1", ""))
        first, second = owner.submit(project="open"), owner.submit(project="patients")
        unnamed = owner.submit(project="not-named")
        running = [first, second, unnamed]
        until(*both, done=lambda: {owner.job(one).state for one in running} == {JobState.ADMITTED})
        for _ in range(2):
            together(*both)
        assert [one.plan.job_id for one in ward.launcher.history] == [second]
        assert {one.plan.job_id for one in owner.world.launcher.history} == {first, unnamed}
        assert {node.pool for node in ward.nodes()} == {"locked"}
        assert {node.pool for node in owner.world.nodes()} == {"cpu"}
        shown = {job["id"]: job["cluster"] for job in owner.client.get("/v1/jobs").json()["items"]}
        assert shown == {first: "default", second: "ward", unnamed: "default"}
        pools = {one["name"]: one["cluster"] for one in owner.client.get("/v1/pools").json()["items"]}
        assert pools == {"cpu": "default", "locked": "ward"}
        nodes = owner.client.get("/v1/nodes").json()["items"]
        assert {(one["pool"], one["cluster"]) for one in nodes} == {("cpu", "default"), ("locked", "ward")}

    def test_of_arrays_and_schedules_are_of_their_projects_cluster_too(
        self, owner: Owner, ward: World
    ) -> None:
        spec = {"command": "python train.py", "project": "patients"}
        answer = owner.client.post("/v1/arrays", json={**spec, "array": {"grid": {"lr": [1, 2]}}})
        assert answer.status_code == 201, answer.text
        answer = owner.client.post("/v1/schedules", json={**spec, "schedule": "0 * * * *"})
        assert answer.status_code == 201, answer.text
        for world in (owner.world, ward):
            world.now = 3601.0
            world.controller.holder.step(world.now)
        together(owner.world, ward, count=3)
        found = owner.client.get("/v1/jobs").json()["items"]
        assert [job["cluster"] for job in found] == ["ward"] * 3
        assert len(ward.launcher.history) == 2, "it has two nodes of one processor"
        assert owner.world.launcher.history == []

    def test_that_were_accepted_stay_where_they_are_when_their_project_moves(
        self, owner: Owner, ward: World
    ) -> None:
        """None is lost, and none runs twice: its cluster is part of the job."""
        both = owner.world, ward
        early = [owner.submit(project="patients") for _ in range(3)]
        until(*both, done=lambda: len(ward.launcher.drivers) == 2)
        apply(owner.world, MOVED)
        late = owner.submit(project="patients")
        until(*both, done=lambda: owner.world.launcher.drivers != {})
        # One is lost and tried again, one waits still.
        ward.launcher.driver_of(early[0]).report("ended", end_reason="node_lost", message="", exit_code=None)
        for _ in range(30):
            together(*both)
            for world in both:
                for driver in list(world.launcher.drivers.values()):
                    if driver.plan.attempt > 1 or driver.plan.job_id != early[0]:
                        driver.report("ended", end_reason="completed", message="", exit_code=0)
        assert {owner.job(one).state for one in (*early, late)} == {JobState.SUCCEEDED}
        ran = [(one.plan.job_id, one.plan.attempt) for one in ward.launcher.history]
        assert sorted(ran) == sorted([(early[0], 1), *((one, 1) for one in early[1:]), (early[0], 2)])
        assert [one.plan.job_id for one in owner.world.launcher.history] == [late]

    def test_wait_in_the_line_of_their_own_cluster(self, owner: Owner, ward: World) -> None:
        apply(owner.world, DOCUMENT.replace("max_nodes: 2", "max_nodes: 0").replace(", share: 1", ""))
        for _ in range(3):
            owner.submit(project="patients", priority=90)
        one, other = owner.submit(project="open"), owner.submit(project="patients")
        ahead = owner.world.database.query(
            lambda c: job_store.jobs_ahead(c, [one, other], owner.world.now, in_projects=False)
        )
        assert ahead == {one: 0, other: 3}

    def test_are_behind_the_job_of_their_own_cluster_that_waits_for_nodes(
        self, owner: Owner, ward: World
    ) -> None:
        apply(owner.world, DOCUMENT.replace("share: 2", "").replace(", share: 1", ""))
        first, last = owner.submit(project="patients"), owner.submit(project="patients")
        one = owner.submit(project="open")

        def wait(connection: sa.Connection) -> None:
            waits_for = {"reason": "waiting_for_nodes", "message": f"{WAITS_FOR_NODES} two"}
            connection.execute(sa.update(jobs).where(jobs.c.id == first).values(waits_for))

        owner.world.database.transact(wait)
        ahead = owner.world.database.query(
            lambda c: job_store.jobs_ahead(c, [one, last], owner.world.now, in_projects=False)
        )
        assert ahead == {one: 0, last: 1}

    def test_are_tried_out_against_the_pools_of_their_cluster(self, owner: Owner) -> None:
        apply(owner.world, DOCUMENT.replace("max_nodes: 2}", "max_nodes: 8}"))
        spec = {"command": "python train.py", "workers": 4}
        never = {
            project: owner.client.post(
                "/v1/jobs", params={"dry_run": "true"}, json={**spec, "project": project}
            ).json()["never"]
            for project in ("open", "patients")
        }
        assert never["open"] is None
        assert "4 workers" in (never["patients"] or "")


class TestAController:
    def test_changes_nothing_of_another_cluster(self, owner: Owner, ward: World) -> None:
        """Whatever there is, in every table."""
        fill(owner, owner.world, "open")
        before = contents(owner.world.database)
        ward.now = owner.world.now + 500.0
        idle = ward.controller
        for _ in range(3):
            ward.now += 0.25
            # Not what is done for all clusters: that lease is the first controller's.
            assert idle.tick(ward.now)
        after = contents(owner.world.database)
        own = {"nodes", "node_events", "waits"}
        # How long nodes took to start is counted for all clusters together.
        assert {name for name in before if before[name] != after[name]} <= own | {"totals"}
        for name in own:
            assert set(before[name]) <= set(after[name]), name
        assert ward.launcher.history == []
        assert ward.launcher.killed == []

    def test_deletes_no_machine_of_another_cluster_in_the_same_cloud(self, owner: Owner, ward: World) -> None:
        together(owner.world, count=6)
        there = set(owner.world.cluster.machines)
        assert len(there) == 2
        ward.cluster = owner.world.cluster
        ward.controller = ward.new_controller()
        together(owner.world, ward, count=6)
        assert there <= set(owner.world.cluster.machines)
        assert {node.id for node in owner.world.nodes() if node.ended_at is None} == there

    def test_resolves_the_secrets_of_its_own_jobs_alone(self, owner: Owner, ward: World) -> None:
        for project, value in (("open", "open-sesame"), ("patients", "hippocrates")):
            answer = owner.client.put(f"/v1/projects/{project}/secrets/TOKEN", json={"value": value})
            assert answer.is_success, answer.text
            owner.submit(project=project, environment={"secrets": ["TOKEN"]})
        # What is counted for all projects is the other controller's.
        owner.world.controller.holder.step(owner.world.now)
        with statements(owner.world.database) as sent:
            together(ward, count=8)
        assert [one.secrets for one in ward.launcher.history] == [{"TOKEN": "hippocrates"}]
        asked = [one for one in sent if "FROM secrets" in one]
        assert len(asked) == 1, asked
        together(owner.world, count=8)
        assert [one.secrets for one in owner.world.launcher.history] == [{"TOKEN": "open-sesame"}]

    def test_that_dies_takes_nothing_from_the_other_cluster(self, owner: Owner, ward: World) -> None:
        """Also not what is done once for all: the other one takes that over, and goes on with it."""
        both = owner.world, ward
        first = owner.submit(project="patients")
        behind = owner.submit(project="patients", after=[{"job": first, "when": "success"}])
        until(*both, done=lambda: first in {one.plan.job_id for one in ward.launcher.history})
        assert owner.world.controller.holder.held_for_all() is not None
        assert ward.controller.holder.held_for_all() is None
        # The first controller is gone from here on.
        report(ward, first)
        together(ward)
        ward.launcher.driver_of(first).report("ended", end_reason="completed", message="", exit_code=0)
        until(ward, done=lambda: owner.job(first).state is JobState.SUCCEEDED)
        assert ward.controller.holder.held_for_all() is None
        ward.now += ward.settings.lease_s
        until(ward, done=lambda: behind in {one.plan.job_id for one in ward.launcher.history})
        assert ward.controller.holder.held_for_all() is not None
        # It comes back, leads its own cluster, and leaves the rest where it is.
        owner.world.now = ward.now
        again = owner.world.new_controller()
        for _ in range(3):
            owner.world.now += owner.world.settings.lease_s
            again.tick(owner.world.now)
            ward.now = owner.world.now
            ward.controller.tick(ward.now)
        assert again.lease is not None
        assert again.holder.held_for_all() is None

    @pytest.mark.parametrize(
        ("name", "value"), [("storage_url", "/elsewhere"), ("retention_days", 0.0), ("stores", {"a": "/b"})]
    )
    def test_with_other_settings_than_the_first_one_does_nothing_for_all_clusters(
        self, owner: Owner, ward: World, caplog: pytest.LogCaptureFixture, name: str, value: Any
    ) -> None:
        """It would delete files elsewhere, and forget where they were."""
        together(owner.world, ward)
        owner.world.controller.resign()
        other = World(ward.database, ward.settings.model_copy(update={name: value}))
        ward.controller.resign()
        other.now = ward.now
        with caplog.at_level("WARNING"):
            other.tick(3)
        assert other.controller.lease is not None
        assert other.controller.holder.held_for_all() is None
        said = [one.getMessage() for one in caplog.records if "differ" in one.getMessage()]
        assert len(said) == 1
        assert f"REMORA_{name.upper()}" in said[0]
        # What the first one was given since then counts.
        other.controller.resign()
        again = World(owner.world.database, owner.world.settings.model_copy(update={name: value}))
        again.controller.tick(other.now)
        again.controller.resign()
        other.controller = other.new_controller()
        other.tick()
        assert other.controller.holder.held_for_all() is not None

    def test_whose_lease_is_lost_does_nothing_for_all_clusters_either(self, owner: Owner) -> None:
        owner.world.tick()
        holder = owner.world.controller.holder
        assert holder.held_for_all() is not None
        take(owner.world.database, "controller")
        for _ in range(10):
            owner.world.now += 0.25
            assert not owner.world.controller.tick(owner.world.now)
        assert holder.held() is None
        assert holder.held_for_all() is None

    def test_says_under_which_lease_it_acts(
        self, owner: Owner, ward: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level("INFO"):
            together(owner.world, ward)
            take(owner.world.database, "controller:ward")
            assert not ward.controller.tick(ward.now)
        said = [one.getMessage() for one in caplog.records if "controller acts now" in one.getMessage()]
        assert [one.partition(" under the lease ")[2].split(",")[0].split(";")[0] for one in said] == [
            "controller",
            "service",
            "controller:ward",
            "controller:ward",
        ]

    def test_whose_lease_for_all_is_lost_goes_on_with_its_cluster(self, owner: Owner) -> None:
        owner.world.tick()
        take(owner.world.database, leases.SERVICE)
        job_id = owner.submit()
        owner.world.tick(4)
        assert owner.job(job_id).state is JobState.ADMITTED
        assert owner.world.controller.holder.held_for_all() is None

    def test_sends_no_more_and_reads_nothing_through_for_many_jobs_of_another_cluster(
        self, owner: Owner, ward: World
    ) -> None:
        """Statements and rows: each of its questions is answered by an index with the cluster first."""
        owner.submit(project="patients")
        together(owner.world, ward, count=4)
        few = len(sent_by(ward))
        fill(owner, owner.world, "open", jobs=40)
        ward.now = owner.world.now
        ward.controller.holder.step(ward.now)
        asked = sent_by(ward)
        assert len(asked) == few
        if owner.world.database.is_sqlite:
            plans = "\n".join(plans_of(owner.world.database, asked))
            through = r"SCAN (jobs|attempts|nodes|uses|waits|events|log_lines)\b(?! USING COVERING INDEX)"
            assert not re.findall(through, plans), plans


def test_a_cluster_without_pools_is_named_until_its_nodes_and_jobs_are_gone(
    owner: Owner, ward: World
) -> None:
    """Its nodes cost money for as long as no controller returns them."""
    together(owner.world, ward, count=6)
    assert len(ward.nodes()) == 2
    without = "pools:\n  cpu: {sizes: [local], capacity: on-demand, max_nodes: 2}\n"
    (said,) = notes_on(owner, without)
    assert said.startswith("no pool is left in the cluster ward, which still has nodes or jobs")
    waits = owner.submit(project="patients")
    apply(owner.world, without)
    ward.controller.resign()
    assert in_use(owner) == {"default", "ward"}
    shown = set(re.findall(r'lease_age_seconds\{cluster="(\w+)"\}', owner.client.get("/metrics").text))
    assert shown == {"default", "ward"}
    ward.controller = ward.new_controller()
    until(owner.world, ward, done=lambda: all(node.ended_at is not None for node in ward.nodes()))
    assert in_use(owner) == {"default", "ward"}, "a job of it waits"
    owner.ask(waits, "cancel")
    assert in_use(owner) == {"default"}
    assert notes_on(owner, without) == []


def test_a_trace_has_jobs_and_nodes_of_one_cluster(owner: Owner, ward: World) -> None:
    """A replay is of one cluster."""
    both = owner.world, ward
    ids = {project: owner.submit(project=project) for project in ("open", "patients")}
    until(*both, done=lambda: all(world.launcher.drivers for world in both))
    for world, job_id in zip(both, ids.values(), strict=True):
        report(world, job_id)
    together(*both, count=3)

    def exported(cluster: str) -> list[str]:
        answer = owner.client.get("/v1/trace", params={"cluster": cluster})
        return [job.id for job in read_lines(answer.json()["text"]).jobs]

    assert exported("default") == [ids["open"]]
    assert exported("ward") == [ids["patients"]]
    assert exported("none-such") == []
    nodes = owner.world.database.query(lambda c: history_since(c, "ward", 0.0, ward.now)).nodes
    assert {node.pool for node in nodes} == {"locked"}
    assert (
        owner.client.get("/v1/trace").json()
        == owner.client.get("/v1/trace", params={"cluster": "default"}).json()
    )
    assert owner.client.get("/v1/trace", params={"cluster": "../x"}).status_code == 422


def in_use(owner: Owner) -> set[str]:
    return owner.world.database.query(clusters_in_use)


def take(database: Database, name: str) -> None:
    """Another process takes a lease."""

    def work(connection: sa.Connection) -> None:
        assert leases.take(connection, leases.get(connection, name), name, "another", 0.0) is not None

    database.transact(work)


def sent_by(world: World) -> list[tuple[str, Any]]:
    """What a tick of a controller asks the database, with its values."""
    sent: list[tuple[str, Any]] = []

    def note(connection: Any, cursor: Any, statement: str, parameters: Any, *rest: Any) -> None:
        sent.append((statement, parameters))

    engines = {world.database.engine, world.database._reading}
    for engine in engines:
        event.listen(engine, "before_cursor_execute", note)
    try:
        world.tick()
    finally:
        for engine in engines:
            event.remove(engine, "before_cursor_execute", note)
    return sent


def plans_of(database: Database, asked: list[tuple[str, Any]]) -> list[str]:
    found = []
    with database._reading.connect() as connection:
        for statement, parameters in asked:
            if statement.lstrip().startswith(("SELECT", "WITH")):
                rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
                found.append("\n".join([statement, *(str(row[-1]) for row in rows)]))
    return found


def fill(owner: Owner, world: World, project: str, jobs: int = 3) -> None:
    """One of everything that a controller looks for: jobs that run, wait, are overdue, paused, and ended."""
    database = world.database
    runs, ended = owner.submit(project=project), owner.submit(project=project)
    until(world, done=lambda: len(world.launcher.drivers) == 2)
    report(world, runs)
    world.launcher.loses_kills = True
    world.launcher.driver_of(ended).report("ended", end_reason="completed", message="", exit_code=0)
    world.tick(2)
    for _ in range(jobs):
        owner.submit(project=project, limits={"wait_time": 1})
        owner.submit(project=project)
    paused = owner.submit(project=project)
    owner.ask(paused, "pause")

    def put(connection: sa.Connection) -> None:
        node_ids = [node.id for node in world.nodes()]
        drills.insert_drill(
            connection, DrillRow(id=new_id("drill", world.now), node_ids=node_ids, requested_at=0.0)
        )
        wait = WaitRow(kind=WaitKind.POOL, about="cpu", place=0, since=0.0, reason="it waits")
        waits.replace_waits(connection, [], [wait])
        asked = RayRequestRow(id="r", project="ray", kind="tasks", count=1, since=0.0, reason="it waits")
        ray_requests.replace_requests(connection, "default", [asked], [])
        cloud.see(connection, "default", 5.0)
        # Nodes of another cluster may have the same address.
        said = SickReport(
            attempt_id="att", project="open", address="127.0.1.1", at=world.now + 1e6, message="it is wrong"
        )
        sick_reports.add_reports(connection, [said])

    database.transact(put)
    assert database.query(lambda c: ledger.open_uses(c, "default"))
    assert database.query(lambda c: job_store.live_attempts(c, "default"))


def test_the_release_before_reads_and_writes_on_after_the_migration(owner: Owner, ward: World) -> None:
    """Its processes run on until the upgrade has replaced them, and know nothing of clusters."""
    job_id, database = owner.submit(), owner.world.database
    by_index = "SELECT id FROM jobs INDEXED BY ix_jobs_line WHERE state = 'queued'"
    asked = by_index if database.is_sqlite else "SELECT id FROM jobs WHERE state = 'queued'"
    found = database.query(lambda c: c.execute(sa.text(asked)).scalars().all())
    assert list(found) == [job_id]
    database.transact(lambda c: cloud.see(c, "ward", 7.0))
    old = "INSERT INTO cloud (id, paused_until, unseen_since) VALUES (1, NULL, 5.0)"
    again = f"{old} ON CONFLICT (id) DO UPDATE SET unseen_since = 6.0"
    for statement in (old, again):
        database.transact(lambda c, text=statement: c.execute(sa.text(text)))  # type: ignore[misc]
    assert database.query(lambda c: cloud.get(c, "default")).unseen_since == 6.0
    assert database.query(lambda c: cloud.get(c, "ward")).unseen_since == 7.0
    database.transact(lambda c: cloud.see(c, "second", 8.0))
    assert database.query(lambda c: cloud.get(c, "second")).unseen_since == 8.0


#: Tables whose rows are no cluster's: of the service, or found by a row that is of one.
OF_ALL = {
    *(
        "array_scores",
        "arrays",
        "audit",
        "budget_days",
        "bundle_holders",
        "bundles",
        "checkpoints",
        "dependencies",
    ),
    *(
        "events",
        "grants",
        "holdings",
        "idempotency",
        "job_labels",
        "leases",
        "loads",
        "log_lines",
        "metrics",
        "models",
    ),
    *(
        "node_events",
        "outputs",
        "phases",
        "policies",
        "profiles",
        "pool_reopenings",
        "schedule_runs",
        "schedules",
        "shell_pieces",
        "shells",
    ),
    *("alert_facts", "alert_watches", "alerts", "notifications"),
    *("secret_versions", "secrets", "signed_out", "token_grants", "tokens", "totals"),
}


def test_every_table_says_whether_its_rows_are_of_a_cluster() -> None:
    assert {table.name for table in metadata.sorted_tables if "cluster" not in table.c} == OF_ALL


def test_every_loop_says_whether_each_cluster_runs_it(
    owner: Owner, ward: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And does so under the right lease; the page has the same list."""
    ran: set[tuple[str, str]] = set()
    run = Controller._run

    def noted(self: Controller, lease: leases.Lease, name: str, loop: Callable[[], None]) -> bool:
        ran.add((lease.name, name))
        return run(self, lease, name, loop)

    monkeypatch.setattr(Controller, "_run", noted)
    together(owner.world, ward, count=2)
    each = {(name, loop) for name in ("controller", "controller:ward") for loop in OF_CLUSTER}
    assert ran == each | {(leases.SERVICE, loop) for loop in OF_SERVICE}
    page = Path("docs/clusters.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (each cluster|once) \|", page, re.MULTILINE)
    assert rows == [*((one, "each cluster") for one in OF_CLUSTER), *((one, "once") for one in OF_SERVICE)]


def readiness(owner: Owner) -> tuple[int, str]:
    answer = owner.client.get("/readyz")
    return answer.status_code, answer.json()["status"]


def notes_on(owner: Owner, document: str) -> list[str]:
    answer = owner.client.post("/v1/policies/check", json={"document": document})
    return [note for note in answer.json()["notes"] if "cluster" in note]


def test_the_service_is_ready_with_the_first_controller_and_names_clusters_without_one(
    owner: Owner, ward: World
) -> None:
    assert readiness(owner) == (503, "no controller is at work on default, ward: jobs are accepted and wait")
    owner.world.tick()
    assert readiness(owner) == (
        200,
        "ready, but no controller is at work on ward: jobs are accepted and wait",
    )
    (said,) = notes_on(owner, DOCUMENT)
    assert said == "no controller leads the cluster ward: its jobs are accepted and wait until one is started"
    together(owner.world, ward)
    assert readiness(owner) == (200, "ready")
    assert notes_on(owner, DOCUMENT) == []
    shown = owner.client.get("/metrics").text
    assert re.findall(r'remora_controller_lease_age_seconds\{cluster="(\w+)"\}', shown) == ["default", "ward"]
