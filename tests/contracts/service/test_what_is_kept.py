"""What is kept of projects and principals, on SQLite and on PostgreSQL: totals that agree with the rows, and limits."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import yaml

from cluster.policies.policies import Policies
from remora.alert_kinds import Channel
from remora.roles import EVERYWHERE, Role
from remora.spec.spec import JobSpec
from service.clouds.fixed_pool import fixed_pool
from service.identities.tokens import TokenRow
from service.loops.recount import Recount
from service.loops.tick import Tick
from service.queue import lifecycle
from service.queue.alerts import AlertRow
from service.queue.intake import LINES_LEFT, Kept, LimitReached
from service.queue.schedules import ScheduleRow
from service.queue.secrets import SecretRow, SecretSource
from service.settings import Settings
from service.store import (
    alerts,
    bundles,
    deletion,
    job_history,
    jobs,
    kept_amounts,
    recounting,
    schedules,
    secret_rows,
    submissions,
    tables,
    tokens,
)
from service.store.database import Database
from service.store.ids import new_id
from service.store.ingest import ingest_all
from service.store.job_history import LogFilter
from service.store.pruning import Limits, prune
from tests.contracts.service.buying import apply
from tests.contracts.service.owners import Owner, owner_of
from tests.contracts.service.two_projects import Service, packed, service_of
from tests.service_fakes import World, hold_lease, records
from tests.statements import statements

PROJECTS = ("red", "blue")
PRINCIPALS = ("user:ann", "token:tok_b")
LIMITS = Policies.model_validate(
    {
        "projects": {
            "red": {"limits": {"bundle_bytes": 700, "output_bytes": 900, "log_lines": 30, "secrets": 2}},
            "blue": {"limits": {"schedules": 2, "tokens": 3, "alerts": 2}},
        },
        "principals": {"bundle_bytes": 900, "tokens": 4, "alerts": 4},
    }
)


def recounted(database: Database) -> dict[tuple[str, Kept], int]:
    """What the rows say."""
    found: Counter[tuple[str, Kept]] = Counter()

    def work(connection: sa.Connection) -> None:
        of_jobs = {row.id: row.project for row in connection.execute(sa.select(tables.jobs))}
        for row in connection.execute(sa.select(tables.log_lines.c.job_id)):
            found[f"project:{of_jobs[row.job_id]}", Kept.LOG_LINES] += 1
        for row in connection.execute(sa.select(tables.outputs)):
            size = sum(file["size_bytes"] for file in row.files.values())
            found[f"project:{of_jobs[row.job_id]}", Kept.OUTPUT_BYTES] += size
        sizes = {row.digest: row.size_bytes for row in connection.execute(sa.select(tables.bundles))}
        for row in connection.execute(sa.select(tables.bundle_holders)):
            found[row.holder, Kept.BUNDLE_BYTES] += sizes[row.digest]
        for table, kind in ((tables.secrets, Kept.SECRETS), (tables.schedules, Kept.SCHEDULES)):
            for row in connection.execute(sa.select(table.c.project)):
                found[f"project:{row.project}", kind] += 1
        for row in connection.execute(sa.select(tables.alerts)):
            found[row.owner, Kept.ALERTS] += 1
            if row.project != EVERYWHERE:
                found[f"project:{row.project}", Kept.ALERTS] += 1
        good = set()
        for row in connection.execute(sa.select(tables.tokens).where(tables.tokens.c.revoked_at.is_(None))):
            good.add(row.id)
            found[row.created_by, Kept.TOKENS] += 1
        for row in connection.execute(sa.select(tables.token_grants)):
            if row.token_id in good and row.project != EVERYWHERE:
                found[f"project:{row.project}", Kept.TOKENS] += 1

    database.query(work)
    return {key: amount for key, amount in found.items() if amount}


def kept(database: Database) -> dict[tuple[str, Kept], int]:
    """What the totals say."""
    rows = database.query(lambda connection: list(connection.execute(sa.select(tables.holdings))))
    return {(row.holder, Kept(row.kind)): row.amount for row in rows if row.amount}


def secret_row(project: str, name: str, now: float) -> SecretRow:
    return SecretRow(
        project=project,
        name=name,
        version=1,
        source=SecretSource.VALUE,
        key_id="key",
        ciphertext=b"x",
        created_at=now,
        updated_at=now,
    )


class Life:
    """Draws writes, deletions and retention of everything that is counted."""

    def __init__(self, database: Database, seed: int) -> None:
        self.database = database
        self.draw = random.Random(seed)
        self.now = 1000.0
        self.sequences: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()

    def step(self) -> None:
        self.now += self.draw.choice([1.0, 1.0, 40.0])
        act = self.draw.choice(
            [
                self.upload, self.upload, self.submit, self.submit, self.report, self.report, self.report,
                self.delete_job, self.prune, self.forget_bundles, self.secret, self.secret, self.delete_secret,
                self.schedule, self.delete_schedule, self.alert, self.alert, self.delete_alert,
                self.token, self.token, self.revoke, self.forget_tokens,
            ]
        )  # fmt: skip
        try:
            self.database.transact(act)
        except LimitReached as error:
            self.refused[error.refusal.code] += 1
        except submissions.BundleMissing:
            pass

    def one(self, connection: sa.Connection, table: sa.Table, *where: Any) -> Any:
        """One of the rows, or None."""
        found = connection.execute(sa.select(table).where(*where).order_by(*table.primary_key.columns)).all()
        return self.draw.choice(found) if found else None

    def upload(self, connection: sa.Connection) -> None:
        digest, size = self.draw.choice([(f"sha256:{one:064x}", 100 + 150 * one) for one in range(4)])
        if bundles.use(connection, digest, self.now):
            bundles.measure(connection, digest, size)
            most = LIMITS.principals.bundle_bytes
            bundles.hold(connection, digest, self.draw.choice(PRINCIPALS), most)

    def submit(self, connection: sa.Connection) -> None:
        bundle = self.one(connection, tables.bundles)
        code = {} if bundle is None else {"code": bundle.digest}
        fields = {"command": "true", "project": self.draw.choice(PROJECTS), "outputs": {"o": {}}, **code}
        job = submissions.submit(connection, JobSpec.from_mapping(fields), self.now, policies=LIMITS)
        jobs.save(connection, job, lifecycle.start_attempt(job, new_id("att", self.now), self.now))

    def report(self, connection: sa.Connection) -> None:
        row = self.one(connection, tables.attempts, tables.attempts.c.state != "ended")
        if row is None:
            return
        text = "\n".join("x" * self.draw.randrange(20))
        sizes = {f"o/{one}": self.draw.randrange(400) for one in range(self.draw.randrange(3))}
        files = {
            name: {"size_bytes": size, "sha256": "0" * 64, "stored": name} for name, size in sizes.items()
        }
        said: list[tuple[str, dict[str, Any]]] = [
            ("log", {"rank": 0, "stream": "stdout", "text": text}),
            ("output", {"location": "/o", "committed_at": self.now, "files": files}),
            ("ended", {"end_reason": "completed", "exit_code": 0}),
        ]
        reported = self.draw.sample(said[:2], self.draw.randrange(1, 3))
        reported += said[2:] if self.draw.random() < 0.2 else []
        new = [replace(one, seq=row.last_record_seq + one.seq) for one in records(*reported)]
        ingest_all(connection, {row.id: new}, self.now, LIMITS)

    def delete_job(self, connection: sa.Connection) -> None:
        row = self.one(connection, tables.jobs, tables.jobs.c.ended_at.is_not(None))
        if row is not None:
            deletion.forget(connection, row.id, self.now, self.draw.choice([5, 1000]))

    def prune(self, connection: sa.Connection) -> None:
        connection.execute(sa.update(tables.attempts).values(released_at=self.now))
        limits = Limits(age_s=60.0, jobs=5, rows=self.draw.choice([3, 100]))
        prune(connection, limits, self.now, self.draw.choice([4, 2000]))

    def forget_bundles(self, connection: sa.Connection) -> None:
        for digest in bundles.choose(connection, self.now - 60.0, self.now, 2):
            bundles.forget(connection, digest)

    def secret(self, connection: sa.Connection) -> None:
        row = secret_row(self.draw.choice(PROJECTS), self.draw.choice("ABC"), self.now)
        secret_rows.put(connection, row, LIMITS.limits_of(row.project).secrets)

    def delete_secret(self, connection: sa.Connection) -> None:
        secret_rows.delete(connection, self.draw.choice(PROJECTS), self.draw.choice("ABC"))

    def schedule(self, connection: sa.Connection) -> None:
        row = ScheduleRow(
            id=new_id("sched", self.now),
            name="nightly",
            project=self.draw.choice(PROJECTS),
            created_at=self.now,
            spec={},
            next_at=self.now,
        )
        schedules.insert(connection, row, LIMITS.limits_of(row.project).schedules)

    def delete_schedule(self, connection: sa.Connection) -> None:
        row = self.one(connection, tables.schedules)
        if row is not None:
            schedules.delete(connection, ScheduleRow(**row._mapping))

    def alert(self, connection: sa.Connection) -> None:
        row = AlertRow(
            id=new_id("alert", self.now),
            project=self.draw.choice([*PROJECTS, EVERYWHERE]),
            owner=self.draw.choice(PRINCIPALS),
            is_own_only=True,
            kinds=["job_ended"],
            channel=Channel.EMAIL,
            address="ann@example.com",
            key_id="key",
            ciphertext=b"x",
            wait_s=60.0,
            budget_percents=[50],
            slow_factor=2.0,
            created_at=self.now,
        )
        alerts.insert(connection, row, LIMITS.limits_of(row.project).alerts, LIMITS.principals.alerts)

    def delete_alert(self, connection: sa.Connection) -> None:
        row = self.one(connection, tables.alerts)
        if row is not None:
            alert = alerts.get(connection, row.id, lock=True)
            assert alert is not None
            alerts.delete(connection, alert)

    def token(self, connection: sa.Connection) -> None:
        grants = dict.fromkeys(self.draw.sample([*PROJECTS], self.draw.randrange(1, 3)), Role.VIEWER)
        row = TokenRow(
            id=new_id("tok", self.now),
            digest="0",
            name="t",
            owner="user:x",
            created_by=self.draw.choice(PRINCIPALS),
            created_at=self.now,
            expires_at=self.now + 50.0,
            grants=grants,
        )
        tokens.insert(connection, row, LIMITS)

    def revoke(self, connection: sa.Connection) -> None:
        row = self.one(connection, tables.tokens)
        if row is not None:
            tokens.revoke(connection, row.id, self.now)

    def forget_tokens(self, connection: sa.Connection) -> None:
        tokens.forget(connection, self.now, 10)


@pytest.mark.parametrize("seed", range(3))
def test_totals_are_the_sums_of_the_rows_whatever_was_written_and_deleted(
    database: Database, seed: int
) -> None:
    life = Life(database, seed)
    for number in range(120):
        life.step()
        if number % 10 == 0:
            assert kept(database) == recounted(database)
    assert kept(database) == recounted(database)
    assert life.refused, "limits were reached"
    for (holder, kind), amount in kept(database).items():
        project = kept_amounts.project_of(holder)
        limits = LIMITS.principals if project is None else LIMITS.limits_of(project)
        most = getattr(limits, kind.value)
        # What running jobs have stored already is no reason to lose it.
        if most is not None and kind not in (Kept.OUTPUT_BYTES, Kept.LOG_LINES):
            assert amount <= most, (holder, kind)


@pytest.mark.parametrize("seed", range(2))
def test_amounts_that_drifted_are_counted_again_when_a_controller_begins(
    database: Database, tmp_path: Path, seed: int
) -> None:
    """As after an upgrade, during which processes of the release before wrote rows and no amounts."""
    life = Life(database, seed)
    kinds = set[Kept]()
    while kinds != set(Kept):
        for _ in range(20):
            life.step()
        kinds = {kind for _, kind in kept(database)}
    right = kept(database)

    def drift(connection: sa.Connection) -> None:
        for holder, kind in sorted(right):
            mine = tables.holdings.c.holder == holder, tables.holdings.c.kind == kind.value
            if life.draw.random() < 0.3:
                connection.execute(sa.delete(tables.holdings).where(*mine))
            else:
                more = life.draw.choice([-7, 5])
                connection.execute(
                    sa.update(tables.holdings).where(*mine).values(amount=tables.holdings.c.amount + more)
                )
        gone = ("project:gone", Kept.LOG_LINES), ("user:gone", Kept.TOKENS), ("project:gone", Kept.SECRETS)
        kept_amounts.add(connection, dict.fromkeys(gone, 3))

    database.transact(drift)
    assert kept(database) != right
    world = World(database, Settings(home=tmp_path, database_url=str(database.url)))
    assert world.controller.tick(life.now)
    assert kept(database) == right == recounted(database)


def test_statements_of_a_count_do_not_grow_with_jobs_and_lines_and_change_nothing_that_is_right(
    database: Database, tmp_path: Path
) -> None:
    life = Life(database, 1)
    lease = database.transact(hold_lease)

    def sent() -> list[str]:
        tick = Tick(database, Settings(home=tmp_path), lease, life.now)
        with statements(database) as found:
            Recount(lambda: 0.0).step(tick)
        return found

    counts = []
    for steps in (60, 120):
        for _ in range(steps):
            life.step()
        found = sent()
        assert {one.split()[0] for one in found if one != "BEGIN"} == {"SELECT"}
        assert not any("FOR UPDATE" in one for one in found), "nothing is locked or written"
        counts.append(len(found))
    assert counts[0] == counts[1]


def test_an_amount_is_counted_again_beside_a_write_of_its_rows(database: Database) -> None:
    """Each in a transaction of its own, in whatever order they come to the amount."""
    database.transact(lambda c: kept_amounts.add(c, {("project:red", Kept.SECRETS): 9}))

    def write(number: int) -> None:
        row = secret_row("red", f"S{number}", 1000.0)
        database.transact(lambda connection: secret_rows.put(connection, row))

    def count() -> None:
        database.transact(lambda c: recounting.put_right(c, Kept.SECRETS, "project:red"))

    with ThreadPoolExecutor(4) as pool:
        for future in [pool.submit(*one) for n in range(20) for one in ((write, n), (count,))]:
            future.result()
    assert kept(database) == recounted(database) == {("project:red", Kept.SECRETS): 20}


@pytest.fixture
def owner(database: Database, database_url: str, tmp_path: Path) -> Iterator[Owner]:
    with owner_of(database, database_url, tmp_path) as made:
        yield made


def limit(owner: Owner, **limits: Any) -> None:
    """The project vision has these limits."""
    document = yaml.safe_load(fixed_pool(owner.world.settings).document)
    document["projects"] = {"vision": {"limits": limits}}
    apply(owner.world, json.dumps(document))


@pytest.mark.postgresql_in_soak
class TestARunningJob:
    def test_of_a_project_with_too_many_lines_keeps_its_newest_ones_and_says_so(self, owner: Owner) -> None:
        limit(owner, log_lines=1500)
        quiet, loud = (owner.submit(project="vision") for _ in range(2))
        for job_id, count in ((quiet, 400), (loud, 900), (loud, 600), (loud, 1200)):
            runs = owner.job(job_id).attempt > 0
            driver = owner.world.launcher.driver_of(job_id) if runs else owner.train(job_id)
            driver.report("log", rank=0, stream="stdout", text="\n".join(map(str, range(count))))
            owner.world.tick()
        lines = [line.text for line in self.lines(owner, loud)]
        # 2700 lines were printed, and 1100 fit beside the 400 of the other one.
        assert len(lines) == max(1500 - 400, LINES_LEFT)
        assert lines[-1] == "1199"
        assert len(self.lines(owner, quiet)) == 400
        ((_, said),) = owner.events(loud, "attempt.logs_over_limit")
        assert "the project vision has 1500 log lines, as many as it may" in said
        assert owner.events(quiet, "attempt.logs_over_limit") == []

    def lines(self, owner: Owner, job_id: str) -> list[Any]:
        read: Callable[[sa.Connection], Any] = lambda c: job_history.page_of_logs(  # noqa: E731
            c, job_id, LogFilter(None, None), 0, 5000
        )
        return list(owner.world.database.query(read))

    def test_may_store_what_the_limit_leaves_and_later_ones_are_refused(self, owner: Owner) -> None:
        limit(owner, output_bytes=1000)
        first = owner.submit(project="vision", outputs={"o": {}})
        driver = owner.train(first)
        assert driver.plan.max_output_bytes == 1000
        files = {"o/w": {"size_bytes": 700, "sha256": "0" * 64, "stored": "w"}}
        driver.report("output", location="/o", committed_at=1.0, files=files)
        owner.world.tick()
        second = owner.train(owner.submit(project="vision", outputs={"o": {}}))
        assert second.plan.max_output_bytes == 300
        assert second.plan.output_limit == "what output_bytes leaves the project vision"
        files["o/w"]["size_bytes"] = 1000
        driver.report("output", location="/o", committed_at=2.0, files=files)
        owner.world.tick()
        spec = {"command": "true", "project": "vision", "outputs": {"o": {}}}
        refused = owner.client.post("/v1/jobs", json=spec)
        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_output_bytes")
        assert "the project vision has 1000 B (1000 bytes) of outputs" in refused.json()["detail"]
        assert "its limit is 1000 B" in refused.json()["detail"]
        assert owner.submit(project="vision"), "a job without outputs"
        assert owner.submit(project="speech", outputs={"o": {}})


@pytest.fixture
def service(database: Database, database_url: str, tmp_path: Path) -> Iterator[Service]:
    with service_of(database, database_url, tmp_path / "home") as made:
        yield made


POLICIES = """
pools: {}
projects: {red: {jobs: 5, limits: {bundle_bytes: 200, schedules: 1, secrets: 1, tokens: 10, streams: 0}}}
principals: {bundle_bytes: 500, tokens: 2}
"""


@pytest.mark.postgresql_in_soak
def test_limits_over_http(service: Service) -> None:
    service.made("POST", "/v1/policies", json={"document": POLICIES, "based_on": 0})
    admin = service.token({"red": "admin"})

    def refused(code: str, said: str, method: str, path: str, **options: Any) -> None:
        answer = service.ask(admin, method, path, **options)
        assert (answer.status_code, answer.json()["code"]) == (429, code), answer.text
        assert said in answer.json()["detail"]
        assert "in the policies" in answer.json()["hint"]
        assert answer.headers["retry-after"]

    small, one = packed("a")
    large, two = packed("b" * 100)
    huge, three = packed("c" * 500)
    for digest, content in ((small, one), (large, two)):
        assert service.ask(admin, "PUT", f"/v1/bundles/{digest}", content=content).status_code == 201
    refused("too_many_bundle_bytes", "token:", "PUT", f"/v1/bundles/{huge}", content=three)
    assert not (service.settings.home / "storage/bundles" / f"{huge.removeprefix('sha256:')}.zip").exists()
    job = {"command": "python train.py", "project": "red"}
    submitted = service.ask(admin, "POST", "/v1/jobs", json={**job, "code": small})
    assert submitted.status_code == 201, submitted.text
    more = {**job, "code": large}
    refused("too_many_bundle_bytes", "the project red has", "POST", "/v1/jobs", json=more)
    nightly = {**job, "schedule": "0 3 * * *"}
    assert service.ask(admin, "POST", "/v1/schedules", json=nightly).status_code == 201
    refused("too_many_schedules", "has 1 schedules and its limit is 1", "POST", "/v1/schedules", json=nightly)
    path = "/v1/projects/red/secrets"
    assert service.ask(admin, "PUT", f"{path}/A", json={"value": "value-of-a"}).status_code == 201
    refused("too_many_secrets", "has 1 secrets", "PUT", f"{path}/B", json={"value": "value-of-b"})
    wanted = {"name": "t", "grants": {"red": "viewer"}}
    for _ in range(2):
        assert service.ask(admin, "POST", "/v1/tokens", json=wanted).status_code == 201
    refused("too_many_tokens", "2 tokens and its limit is 2", "POST", "/v1/tokens", json=wanted)
    stream = {"headers": {"Accept": "text/event-stream"}}
    events = service.ask(admin, "GET", f"/v1/jobs/{submitted.json()['id']}/events", **stream)
    assert (events.status_code, events.json()["code"]) == (429, "too_many_streams")
    (shown,) = service.ask(admin, "GET", "/v1/projects").json()["items"]
    assert shown["name"] == "red"
    uses = {kind: (use["used"], use["limit"]) for kind, use in shown["uses"].items()}
    assert uses == {
        "jobs": (1, 5), "gpus": (0, None), "bundle_bytes": (len(one), 200), "output_bytes": (0, None),
        "log_lines": (0, None), "secrets": (1, 1), "schedules": (1, 1), "tokens": (3, 10), "alerts": (0, 100),
        "streams": (0, 0),
    }  # fmt: skip
    stranger = service.token({"blue": "viewer"})
    assert [one["name"] for one in service.ask(stranger, "GET", "/v1/projects").json()["items"]] == ["blue"]
    assert "red" in str(service.made("GET", "/v1/projects"))
