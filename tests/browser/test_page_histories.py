"""What the page shows in Chromium of jobs that the store has: long ones, what others wait for, profiles, and zones."""

from __future__ import annotations

import gzip
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from remora.states import AttemptState, JobState, NodeState
from service.queue.lifecycle import NodeDecision
from service.queue.profiles import ProfileRow
from service.queue.rows import NodeRow, WorkPhase
from service.settings import Settings
from service.store import nodes, profiles
from service.store.database import Database
from service.store.ids import new_id
from service.store.tables import attempts, events, jobs, phases
from tests.browser.chromium import PATIENCE_MS, Tab, tab
from trainers.profiles import profile_name
from trainers.storage import Storage

pytestmark = pytest.mark.slow

#: Events of a long job, ten in a second.
COUNT = 25_000
LOST_AT = 24_000
#: What stands in its first events, and late in them.
CHANGES = {
    1: ("job.queued", {}),
    2: ("attempt.created", {}),
    3: ("worker_group.started", {"addresses": ["10.0.0.1", "10.0.0.2"]}),
    4: ("attempt.started", {}),
    5: ("training.began", {}),
    LOST_AT: ("node.lost", {"ranks": [1]}),
    LOST_AT + 10: (
        "worker_group.regrouped",
        {"addresses": ["10.0.0.1"], "world_size": 1, "cause": "loss", "pause_s": 1.0},
    ),
    LOST_AT + 20: ("training.resumed", {"repeated_steps": 7, "recomputing_s": 1.0, "pause_s": 2.0}),
}


@pytest.fixture
def page(browser: Any, api: str) -> Iterator[Tab]:
    with tab(browser, api) as opened:
        yield opened


@pytest.fixture
def database(api: str, api_settings: Settings) -> Iterator[Database]:
    """The database of the API."""
    opened = Database(api_settings.database)
    yield opened
    opened.close()


def submit(api: str, **fields: Any) -> str:
    """The id of a job that waits."""
    answer = httpx2.post(f"{api}/v1/jobs", json={"command": "python train.py", **fields})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["id"])


def store(database: Database, table: sa.Table, rows: Sequence[dict[str, Any]]) -> None:
    database.transact(lambda connection: connection.execute(sa.insert(table), rows))


def change(database: Database, job_id: str, **values: Any) -> None:
    mine = sa.update(jobs).where(jobs.c.id == job_id).values(**values, version=jobs.c.version + 1)
    database.transact(lambda connection: connection.execute(mine))


def long_job(api: str, database: Database, forgotten: int = 0) -> str:
    """A job that has committed thousands of checkpoints; its first events are `forgotten`."""
    job_id = submit(api, name="watched")
    began = time.time() - COUNT / 10
    rows = []
    for seq in range(forgotten + 1, COUNT + 1):
        kind, data = CHANGES.get(seq, ("checkpoint.committed", {}))
        row = {"job_id": job_id, "seq": seq, "at": began + seq / 10, "kind": kind, "data": data}
        rows.append({**row, "message": f"Event {seq}.", "attempt": 1})
    mine = sa.delete(events).where(events.c.job_id == job_id)
    database.transact(lambda connection: connection.execute(mine))
    store(database, events, rows)
    change(database, job_id, event_seq=COUNT, created_at=began, started_at=began, state=JobState.RUNNING)
    return job_id


def test_the_picture_of_a_long_job_has_its_newest_events_and_every_change_before(
    page: Tab, api: str, database: Database
) -> None:
    page.open(f"jobs/{long_job(api, database)}")
    page.shows("The page reads the newest 20,000 events and the changes before them.")
    page.shows("when it was submitted; all 41 min")
    spans = page.page.locator("svg.life rect.fill-training title").all_text_contents()
    assert any(re.match("job: training for (39 min 59 s|40 min),", span) for span in spans), spans
    losses = page.page.get_by_role("region", name="preemptions and failures")
    losses.get_by_role("cell", name=f"Event {LOST_AT}.").wait_for(timeout=PATIENCE_MS)
    assert page.page.locator(".title .state").first.inner_text() == "running: training"
    page.page.get_by_text("The newest 20,000 events", exact=True).click()
    page.page.get_by_role("cell", name=f"Event {COUNT}.", exact=True).wait_for(timeout=PATIENCE_MS)
    assert page.findings() == []


def test_a_picture_that_begins_after_the_job_says_so(page: Tab, api: str, database: Database) -> None:
    page.open(f"jobs/{long_job(api, database, forgotten=100)}")
    page.shows("changes before them: the picture begins on ")
    page.shows("when the picture begins; the last ")
    losses = page.page.get_by_role("region", name="preemptions and failures")
    losses.get_by_role("cell", name=f"Event {LOST_AT}.").wait_for(timeout=PATIENCE_MS)
    assert page.findings() == []


def test_what_happens_while_a_long_job_is_shown_is_added_to_its_picture(
    page: Tab, api: str, database: Database
) -> None:
    job_id = long_job(api, database)
    page.open(f"jobs/{job_id}")
    page.shows("The page reads the newest 20,000 events and the changes before them.")
    row = {"job_id": job_id, "seq": COUNT + 1, "at": time.time(), "kind": "worker.straggles", "data": {}}
    store(database, events, [{**row, "message": "It came later.", "attempt": 1}])
    change(database, job_id, event_seq=COUNT + 1)
    mark = page.page.locator("svg.life .mark-notice title", has_text="It came later.").first
    mark.wait_for(state="attached", timeout=PATIENCE_MS)
    page.page.get_by_text("The newest 20,000 events", exact=True).wait_for(timeout=PATIENCE_MS)


def test_stalls_for_checkpoints_are_bands_of_the_life_line(page: Tab, api: str, database: Database) -> None:
    job_id = long_job(api, database)
    began = httpx2.get(f"{api}/v1/jobs/{job_id}").json()["created_at"]
    attempt = {"id": new_id("att", began), "job_id": job_id, "attempt": 1, "state": AttemptState.RUNNING}
    counts = dict.fromkeys(("world_size", "repeated_steps", "lost_s", "last_record_seq"), 0)
    store(database, attempts, [{**attempt, "created_at": began, **counts}])
    course = [(0.2, WorkPhase.TRAINING), (100.0, WorkPhase.CHECKPOINT), (160.0, WorkPhase.TRAINING)]
    store(
        database,
        phases,
        [
            {"job_id": job_id, "attempt": 1, "number": number, "began_at": began + at, "phase": phase}
            for number, (at, phase) in enumerate(course, 1)
        ],
    )
    page.open(f"jobs/{job_id}")
    bands = page.page.locator("svg.life rect.fill-checkpoint_stall")
    bands.first.wait_for(timeout=PATIENCE_MS)
    titles = [band.text_content() for band in bands.all()]
    assert [title.split(",")[0] for title in titles] == [
        f"{lane}: checkpoint stall for 1 min" for lane in ("job", "rank 0", "rank 1")
    ]
    spans = page.page.locator("svg.life rect.fill-training title").all_text_contents()
    assert any(re.match("job: training for 1 min (39|40) s,", span) for span in spans), spans


def test_a_job_that_waits_for_others_says_when_it_may_start_if_that_is_known(
    page: Tab, api: str, database: Database
) -> None:
    first, second = submit(api, name="first"), submit(api, name="second")
    waiting = submit(api, name="third", after=[{"job": first}, {"job": second}])
    page.open(f"jobs/{waiting}")
    page.shows("waits for the success of first")
    box = page.page.locator(".notice", has_text="When it may start is not known")
    box.get_by_role("link", name="second").wait_for(timeout=PATIENCE_MS)
    began = time.time() - 1000.0
    runs = {"state": JobState.RUNNING, "started_at": began, "total_steps": 200}
    change(database, first, step=100, **runs)
    box.get_by_text(re.compile(r"first running 1\d min.* left")).wait_for(timeout=PATIENCE_MS)
    assert box.get_by_text("second queued not known").count() == 1, "nothing is said where one is not known"
    change(database, second, step=50, **runs)
    page.page.get_by_text(re.compile(r"It may start in about 5\d min .*mean paces")).wait_for(
        timeout=PATIENCE_MS
    )
    assert page.findings() == []


def trace(folder: Path) -> bytes:
    """What PyTorch's profiler records of a product of two matrices."""
    import torch

    matrix = torch.ones(64, 64)
    with torch.autograd.profiler.profile(use_kineto=True) as recorded:
        for _ in range(7):
            with torch.autograd.profiler.record_function("step"):
                torch.mm(matrix, matrix).relu().sum()
    path = folder / "trace.json"
    recorded.export_chrome_trace(str(path))
    return gzip.compress(path.read_bytes())


def store_profile(api: str, settings: Settings, database: Database, content: bytes) -> str:
    """The id of a job with that profile."""
    job_id, file = submit(api), "a" * 32
    Storage(settings.storage).write_bytes(profile_name(job_id, file), content)
    place = {"job_id": job_id, "number": 1, "attempt": 1, "rank": 0, "steps": 1, "requested_at": 1.0}
    row = ProfileRow(**place, ended_at=2.0, file=file, size_bytes=len(content), sha256="b" * 64)
    database.transact(lambda connection: profiles.add(connection, row))
    return job_id


def test_a_profile_opens_in_the_page(
    page: Tab, api: str, api_settings: Settings, database: Database, tmp_path: Path
) -> None:
    job_id = store_profile(api, api_settings, database, trace(tmp_path))
    page.open(f"jobs/{job_id}")
    page.page.get_by_role("region", name="profiles").get_by_role("link", name="open").click()
    operators = page.page.get_by_role("region", name="operators")
    row = operators.get_by_role("row").filter(has=page.page.get_by_role("cell", name="aten::mm", exact=True))
    row.wait_for(timeout=PATIENCE_MS)
    assert row.get_by_role("cell").nth(2).inner_text() == "7", "it was called in each step"
    picture = page.page.get_by_role("img", name=re.compile("threads? and streams did"))
    before = picture.evaluate("canvas => canvas.toDataURL()")
    page.page.get_by_role("button", name="zoom in").click()
    page.page.wait_for_function(
        "before => document.querySelector('canvas').toDataURL() !== before", arg=before
    )
    page.page.get_by_role("button", name="all of it").click()
    page.page.wait_for_function(
        "before => document.querySelector('canvas').toDataURL() === before", arg=before
    )
    assert page.findings() == []
    assert page.page.url.endswith(f"#/jobs/{job_id}/profiles/1"), "it can be kept and sent"
    page.picture("profile")


#: Nothing but spans that are none.
NO_SPANS = b'{"traceEvents": [null, 1, {"ph": "X", "ts": "1"}]}'


@pytest.mark.parametrize(
    "content", [b"no archive", gzip.compress(b"no trace"), gzip.compress(b"[]"), gzip.compress(NO_SPANS)]
)
def test_what_is_no_trace_is_said_in_one_sentence(
    page: Tab, api: str, api_settings: Settings, database: Database, content: bytes
) -> None:
    job_id = store_profile(api, api_settings, database, content)
    page.open(f"jobs/{job_id}/profiles/1")
    page.page.get_by_role("alert").wait_for(timeout=PATIENCE_MS)
    assert page.page.get_by_role("alert").inner_text().startswith("The page finds no operator in the trace.")


def test_the_nodes_of_a_pool_are_grouped_by_zone(page: Tab, api: str, database: Database) -> None:
    now = time.time()
    for zone in ("2", "1", "2", "any"):
        node = NodeRow(
            id=new_id("node", now), pool="local", created_at=now, launched_at=now, ready_at=now,
            state=NodeState.READY, offering=f"small/{zone}/spot", price_per_hour=0.25,
        )  # fmt: skip
        database.transact(lambda connection, node=node: nodes.insert_node(connection, NodeDecision(node, ())))
    page.open("cluster")
    page.page.get_by_role("heading", name="Zone 2").wait_for(timeout=PATIENCE_MS)
    assert page.page.get_by_role("heading", level=3).all_inner_texts() == ["Zone 1 1 node", "Zone 2 2 nodes"]
    groups = page.page.locator(".tiles")
    assert [groups.nth(at).locator(".tile").count() for at in range(groups.count())] == [1, 1, 2]
    assert page.findings() == []
