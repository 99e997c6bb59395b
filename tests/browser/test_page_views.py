"""Every view of the page, in Chromium, with a job that really trained and lost a node."""

from __future__ import annotations

import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from remora.states import JobState
from tests.browser.chromium import PATIENCE_MS, Tab, tab
from tests.e2e.embedded import Embedded
from tests.e2e.processes import until

# Their job starts a service, trains, loses its node and trains again before the first of them begins.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = """
import os
import sys
import time
from pathlib import Path

import remora.training as training

steps = int(sys.argv[1])
for step in range(int(os.environ.get("REMORA_RESUME_STEP", 0)) + 1, steps + 1):
    print(f"step {step}", flush=True)
    training.report(step, {"loss": 1.0 / step}, total_steps=steps)
    if training.should_checkpoint() or step == steps:
        with training.checkpoint(step) as folder:
            (folder / "state.txt").write_text(f"after {step} steps")
            # The training loop waits for its storage.
            time.sleep(1.5)
    time.sleep(0.05)
Path(os.environ["REMORA_OUTPUTS_DIR"], "notes.txt").write_text("It was short.")
"""
VIEWS = ("jobs", "cluster", "costs", "policies")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(
        tmp_path_factory.mktemp("remora") / "home",
        nodes=1,
        variables={"REMORA_ISOLATION": "none", "REMORA_NODE_PRICE_PER_HOUR": "3.6"},
    )
    try:
        embedded.start()
        yield embedded
    finally:
        embedded.end()


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    (folder / "train.py").write_text(SCRIPT)
    return folder


def spec(code: Path, name: str, steps: int) -> dict[str, Any]:
    command = ["python", "train.py", str(steps)]
    return {"name": name, "code": str(code), "command": command, "checkpoint": {"interval": "10s"}}


@pytest.fixture(scope="module")
def short_job(service: Embedded, code: Path) -> str:
    """A job that has ended, with a checkpoint and an output."""
    with service.client() as client:
        job = client.submit(spec(code, "short", 40))
        assert client.wait(job.id, 120.0).state is JobState.SUCCEEDED
    return job.id


@pytest.fixture(scope="module")
def job(service: Embedded, code: Path, short_job: str) -> str:
    """A job that trains, after its node was lost."""
    with service.client() as client:
        long = spec(code, "watched", 2_000_000)
        job = client.submit({**long, "labels": {"kind": "page"}})
        until(lambda: (client.job(job.id).step or 0) > 20, "it trains")
        (node,) = service.ready_nodes()
        service.remora("drill", "--node", node, "--silent", "--detach")
        until(
            lambda: any(event.kind == "attempt.regrouping" for event in client.events(job.id)),
            "its node is lost",
        )
        until(lambda: client.job(job.id).state is JobState.RUNNING and client.job(job.id).world_size, "again")
        resumed = "training.resumed"
        until(lambda: any(event.kind == resumed for event in client.events(job.id)), "new steps are done")
        until(lambda: client.checkpoints(job.id), "it has a checkpoint")
        second = client.submit({**long, "name": "second", "labels": {"kind": "page"}})
        until(lambda: client.job(second.id).message, "it waits, and says why")
    return job.id


@pytest.fixture
def page(browser: Any, service: Embedded) -> Iterator[Tab]:
    with tab(browser, service.url) as opened:
        yield opened


def test_the_table_of_jobs_updates_itself_and_keeps_its_filters_in_the_address(page: Tab, job: str) -> None:
    page.open("jobs")
    page.shows("watched")
    steps = page.page.get_by_text(re.compile(r"\d of 2,000,000")).first
    before = steps.inner_text()
    page.page.wait_for_function(
        "before => ![...document.querySelectorAll('td')].some(cell => cell.innerText.startsWith(before))",
        arg=before.split(" of")[0] + " of",
        timeout=PATIENCE_MS,
    )
    page.page.get_by_role("textbox", name="Label").fill("kind=other")
    page.page.get_by_role("textbox", name="Label").press("Enter")
    page.shows("No job matches.")
    assert page.page.url.endswith("#/jobs?label=kind%3Dother")
    page.page.get_by_role("textbox", name="Label").fill("kind=page")
    page.page.get_by_role("textbox", name="Label").press("Enter")
    page.shows("watched")
    waiting = page.page.get_by_role("row").filter(has_text="second")
    assert waiting.locator(".state + .why").inner_text() != "", "why it waits stands below its state"
    running = page.page.get_by_role("row").filter(has_text="watched")
    running.get_by_text(re.compile(r"0\.\d*[1-9]\d* USD")).wait_for(timeout=PATIENCE_MS)
    assert page.findings() == []
    page.picture("jobs")


def test_a_job_shows_its_life_line_metrics_and_logs(page: Tab, job: str) -> None:
    page.open(f"jobs/{job}")
    page.shows("Life line")
    page.page.locator("svg.life rect.fill-training").first.wait_for(timeout=PATIENCE_MS)
    # A mark says when, why, and what it cost in time, steps and money; the table and the tile say the same.
    cost = r"(noticed after [^;]*, )?regrouping .*; [\d,]+ steps? repeated; 0\.\d*[1-9]\d* USD"
    mark = page.page.locator("svg.life text.mark-loss").first
    mark.filter(has_text=re.compile(r"\d\d:\d\d:\d\d .* Until the next new step: " + cost)).wait_for(
        timeout=PATIENCE_MS
    )
    losses = page.page.get_by_role("region", name="preemptions and failures")
    losses.get_by_text(re.compile(r"0\.\d*[1-9]\d* USD")).wait_for(timeout=PATIENCE_MS)
    page.page.locator(".cards .card", has_text=re.compile("Lost to failures.*" + cost)).wait_for(
        timeout=PATIENCE_MS
    )
    page.page.locator(".title .state", has_text="running: training").wait_for(timeout=PATIENCE_MS)
    assert page.page.locator("svg.life circle.fill-on-demand").count() >= 1, "a colour for each capacity"
    page.page.get_by_role("img", name="loss by step").wait_for(timeout=PATIENCE_MS)
    page.page.get_by_label("contains").fill("step 1")
    page.page.locator(".log mark").first.wait_for(timeout=PATIENCE_MS)
    page.page.get_by_label("contains").fill("printed by no rank")
    page.shows("There is no such line among the newest 1,000,000.")
    page.page.get_by_label("contains").fill("")
    page.page.locator(".log .stdout").first.wait_for(timeout=PATIENCE_MS)
    page.page.get_by_role("button", name="zoom in").click()
    page.shows("a part is shown: from")
    page.page.get_by_role("button", name="all of it").click()
    page.shows("when it was submitted; all")
    page.page.locator("svg.life rect.fill-checkpoint_stall").first.wait_for(timeout=PATIENCE_MS)
    checkpoints = page.page.get_by_role("region", name="checkpoints")
    checkpoints.get_by_role("link", name="download").first.wait_for(timeout=PATIENCE_MS)
    assert page.findings() == []
    page.picture("job")


def picture_of(page: Tab, name: str) -> str:
    """The pixels of a plot."""
    canvas = page.page.get_by_role("img", name=name).locator("canvas")
    found: str = canvas.evaluate("canvas => canvas.toDataURL()")
    return found


def wait_for_another_picture(page: Tab, name: str, before: str) -> str:
    page.page.wait_for_function(
        "([name, before]) => document.querySelector(`[aria-label='${name}'] canvas`)?.toDataURL() !== before",
        arg=[name, before],
        timeout=PATIENCE_MS,
    )
    return picture_of(page, name)


def test_metrics_are_smoothed_and_shown_by_logarithm_and_over_time(page: Tab, short_job: str) -> None:
    page.open(f"jobs/{short_job}")
    plot = "loss by step"
    page.page.get_by_role("img", name=plot).locator("canvas").wait_for(timeout=PATIENCE_MS)
    plain = picture_of(page, plot)
    smoothing, values = page.page.get_by_label("smoothing"), page.page.get_by_label("values")
    smoothing.fill("0.9")
    smooth = wait_for_another_picture(page, plot, plain)
    values.select_option("log")
    wait_for_another_picture(page, plot, smooth)
    values.select_option("linear")
    smoothing.fill("0")
    page.page.wait_for_function(
        "before => document.querySelector('.plot canvas').toDataURL() === before",
        arg=plain,
        timeout=PATIENCE_MS,
    )
    page.page.get_by_label("axis").select_option("time")
    page.page.get_by_role("img", name="loss by time").wait_for(timeout=PATIENCE_MS)
    assert page.findings() == []


def test_another_job_is_laid_over_the_metrics_and_its_specification_is_compared(
    page: Tab, job: str, short_job: str
) -> None:
    page.open(f"jobs/{short_job}")
    page.page.get_by_text("Compare with other jobs").click(timeout=PATIENCE_MS)
    page.page.get_by_label("id of a job").fill(job)
    page.page.get_by_role("button", name="Add").click()
    runs = page.page.locator(".u-legend .u-label")
    runs.filter(has_text="watched").wait_for(timeout=PATIENCE_MS)
    assert runs.all_inner_texts() == ["step", "short", "watched"]
    assert page.page.url.endswith(f"?with={job}"), "it can be kept and sent"
    page.page.get_by_text("Specification, and what differs from watched").click()
    page.page.locator(".diff-more", has_text='"40"').wait_for(timeout=PATIENCE_MS)
    page.page.locator(".diff-less", has_text='"2000000"').wait_for(timeout=PATIENCE_MS)
    assert page.findings() == []
    page.page.get_by_role("button", name="remove watched").click()
    runs.filter(has_text="watched").wait_for(state="detached", timeout=PATIENCE_MS)


def test_checkpoints_and_outputs_are_downloaded(page: Tab, short_job: str) -> None:
    page.open(f"jobs/{short_job}")
    with page.page.expect_download() as downloading:
        page.page.get_by_role("region", name="checkpoints").get_by_role("link", name="download").last.click()
    with tarfile.open(downloading.value.path()) as archive:
        (name,) = [one for one in archive.getnames() if one.endswith("state.txt")]
        content = archive.extractfile(name)
        assert content is not None
        assert content.read() == b"after 40 steps"
    with page.page.expect_download() as downloading:
        page.page.get_by_role("region", name="outputs").get_by_role("link", name="notes.txt").click()
    assert Path(downloading.value.path()).read_text() == "It was short."


#: Whether the newest lines of the log are to be seen, and what the newest one is.
AT_END = """() => {
  const box = document.querySelector(".log");
  return box.scrollTop > 0 && box.scrollTop + box.clientHeight > box.scrollHeight - 40;
}"""
NEWEST = "() => document.querySelector('.log').lastElementChild.innerText"


def test_the_log_follows_its_newest_line_until_it_is_not_to(page: Tab, job: str) -> None:
    page.open(f"jobs/{job}")
    page.page.locator(".log .stdout").first.wait_for(timeout=PATIENCE_MS)
    page.page.wait_for_function(AT_END, timeout=PATIENCE_MS)
    page.page.get_by_role("button", name="Following").click()
    page.page.evaluate("document.querySelector('.log').scrollTop = 0")
    newest = page.page.evaluate(NEWEST)
    page.page.wait_for_function(f"before => ({NEWEST})() !== before", arg=newest, timeout=PATIENCE_MS)
    assert page.page.evaluate("document.querySelector('.log').scrollTop") == 0, "who reads is left alone"
    page.page.get_by_role("button", name="Follow", exact=True).click()
    page.page.wait_for_function(AT_END, timeout=PATIENCE_MS)


def test_the_log_of_one_rank_is_shown_alone(page: Tab, job: str) -> None:
    page.open(f"jobs/{job}")
    page.page.locator(".log .stdout").first.wait_for(timeout=PATIENCE_MS)
    page.page.get_by_label("rank").fill("7")
    page.shows("There is no such line among the newest 1,000,000.")
    page.page.get_by_label("rank").fill("0")
    page.page.locator(".log .stdout", has_text="rank 0").first.wait_for(timeout=PATIENCE_MS)
    assert page.page.locator(".log .remora").count() == 0, "no rank has printed what the service says"


def test_a_job_shows_how_busy_its_workers_are_and_a_node_their_sum(
    page: Tab, job: str, service: Embedded
) -> None:
    page.open(f"jobs/{job}")
    loads = page.page.get_by_role("region", name="load of the workers")
    loads.get_by_text(re.compile(r"\d\.\d\d CPU")).first.wait_for(timeout=PATIENCE_MS)
    assert loads.get_by_role("img", name="CPU over ten minutes").count() == 1
    with service.client() as client:
        (worker,) = client.worker_loads(job)
        assert worker.points[-1].cpu < 100, "processors, and not percent"
    page.open("cluster")
    tile = page.page.locator(".tile")
    tile.get_by_text(re.compile(r"\d\.\d\d CPU")).first.wait_for(timeout=PATIENCE_MS)
    assert page.findings() == []


def test_a_job_is_submitted_by_its_file(page: Tab, job: str, service: Embedded, tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    page.open("jobs")
    page.shows("watched")
    for text, answer in [
        ("workers: {min: 0}", "workers.min"),
        ("a: [", "is not YAML"),
        ("just words", "must be a mapping"),
    ]:
        file.write_text(text)
        page.page.locator("input[type=file]").set_input_files(file)
        page.page.locator(".problem", has_text=answer).first.wait_for(timeout=PATIENCE_MS)
    file.write_text("name: dropped\ncommand: ['true']\nworkers: {min: 1, max: 1}\n")
    page.page.locator("input[type=file]").set_input_files(file)
    page.page.get_by_role("button", name="Submit", exact=True).click()
    page.page.locator(".notice", has_text="Submitted").wait_for(timeout=PATIENCE_MS)
    # A browser reports each answer that is an error on its console: the first file's was meant.
    page.complaints[:] = [said for said in page.complaints if "status of 422" not in said]
    with service.client() as client:
        (dropped,) = [one for one in client.jobs() if one.name == "dropped"]
        client.cancel(dropped.id)


def test_the_cluster_shows_its_pools_and_nodes(page: Tab, job: str) -> None:
    page.open("cluster")
    page.page.locator(".tile .state.ready").first.wait_for(timeout=PATIENCE_MS)
    page.page.locator(".tile").get_by_role("link", name="watched").wait_for(timeout=PATIENCE_MS)
    page.shows("Planned: nothing more, as its policy allows 1 node at most.")
    asked: list[str] = []
    page.page.once("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.page.get_by_role("button", name="Rehearse a preemption").click()
    assert re.search(r"of node …\w{5} of the pool local.*1 job on them", asked[0])
    page.picture("cluster")
    page.page.get_by_text(re.compile(r"\d+ nodes? ended")).click()
    assert page.findings() == []


def test_costs_are_shown_by_cause_project_pool_and_job(page: Tab, job: str) -> None:
    page.open("costs?days=1")
    page.page.locator("svg rect.cause-training").first.wait_for(timeout=PATIENCE_MS)
    of_jobs = page.page.get_by_role("region", name="costs of jobs")
    of_jobs.get_by_role("link", name="watched").wait_for(timeout=PATIENCE_MS)
    page.page.get_by_label("range").select_option("31 days")
    page.page.get_by_role("img", name="costs by day and cause").wait_for(timeout=PATIENCE_MS)
    assert page.page.url.endswith("#/costs?days=31")
    assert page.findings() == []
    page.picture("costs")


def test_policies_are_checked_while_they_are_typed(page: Tab, job: str) -> None:
    page.open("policies")
    editor = page.page.get_by_role("textbox", name="1. Edit")
    page.page.wait_for_function("() => document.querySelector('textarea')?.value.includes('pools')")
    document = editor.input_value()
    editor.fill(document.replace("max_nodes", "most_nodes"))
    page.page.locator(".problem").first.wait_for(timeout=PATIENCE_MS)
    editor.fill(document + "\n# checked\n")
    page.shows("Valid; 2 lines changed; not applied yet.")
    assert page.page.locator(".diff-more").count() >= 1
    assert page.findings() == []
    page.picture("policies")


def test_policies_are_applied_and_an_earlier_version_is_restored(
    page: Tab, job: str, service: Embedded
) -> None:
    page.page.on("dialog", lambda dialog: dialog.accept())
    page.open("policies")
    editor = page.page.get_by_role("textbox", name="1. Edit")
    page.page.wait_for_function("() => document.querySelector('textarea')?.value.includes('pools')")
    before = editor.input_value()
    editor.fill(before + "\n# for the night\n")
    page.page.get_by_label("comment").fill("more at night")
    page.page.get_by_role("button", name="Apply", exact=True).click(timeout=PATIENCE_MS)
    versions = page.page.get_by_role("region", name="versions of the policies").get_by_role("row")
    versions.filter(has_text="more at night").filter(has_text="in effect").wait_for(timeout=PATIENCE_MS)
    with service.client() as client:
        assert client.policy().document.endswith("# for the night\n")
    versions.filter(has_text="when the service began").get_by_role("button", name="Restore").click()
    restored = versions.filter(has_text="Back to version 0. (restores 0)").filter(has_text="in effect")
    restored.wait_for(timeout=PATIENCE_MS)
    assert editor.input_value() == before
    with service.client() as client:
        assert client.policy().document == before


def test_a_trace_is_replayed_under_two_policies_side_by_side(page: Tab, job: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace.jsonl"
    trace.write_text("\n".join(map(json.dumps, eight_jobs())))
    page.open("policies")
    page.page.wait_for_function("() => document.querySelector('textarea')?.value.includes('pools')")
    editor = page.page.get_by_role("textbox", name="1. Edit")
    editor.fill(editor.input_value().replace("max_nodes: 1", "max_nodes: 12"))
    page.page.get_by_label(re.compile("^trace")).select_option("files")
    replay = page.page.get_by_role("button", name="Replay")
    assert replay.is_disabled(), "there is no file yet"
    page.page.locator("input[type=file]").set_input_files(trace)
    replay.click()
    policies = ("in effect", "edited")
    for figure in ("cost", "median wait", "wait of 95 %", "goodput", "deadlines missed"):
        for policy in policies:
            page.page.get_by_role("progressbar", name=f"{figure}, {policy}").wait_for(timeout=PATIENCE_MS)
    waits = [page.page.get_by_role("progressbar", name=f"median wait, {one}") for one in policies]
    longest, shorter = (float(bar.get_attribute("aria-valuenow") or -1) for bar in waits)
    assert longest == 100, "the longest bar is as wide as its card"
    assert 0 <= shorter < 10, "with twelve nodes no job waits for another one"
    results = page.page.get_by_role("region", name="result of the replay")
    assert results.get_by_role("columnheader").all_inner_texts() == ["", *policies]
    page.page.get_by_role("img", name="nodes and waiting jobs over time").wait_for(timeout=PATIENCE_MS)
    assert page.findings() == []


def eight_jobs() -> Iterator[dict[str, object]]:
    """A trace of jobs of an hour that come at once, each of which takes a node of this machine."""
    resources = {"resources": {"CPU": 4}, "price_per_hour": 1.0}
    yield {"kind": "offering", "size": "local", "zone": None, "capacity": "on-demand", **resources}
    for number in range(8):
        times = {"at_s": 0, "work_s": 3600, "deadline_s": 9000}
        yield {"kind": "job", "id": f"job-{number}", "workers": 1, "resources": {"CPU": 3}, **times}


def test_a_job_is_paused_and_resumed_by_buttons(page: Tab, job: str, service: Embedded) -> None:
    with service.client() as client:
        # The one that waits would take its node.
        for one in client.jobs():
            if one.id != job and not one.terminal:
                client.cancel(one.id)
                client.wait(one.id, 60.0)
    page.open(f"jobs/{job}")
    page.page.get_by_role("button", name="Pause").click()
    page.page.get_by_role("button", name="Resume").click(timeout=PATIENCE_MS)
    page.page.get_by_role("button", name="Pause").wait_for(timeout=PATIENCE_MS)
    with service.client() as client:
        kinds = [event.kind for event in client.events(job)]
    # On a slow machine it was paused before it was resumed.
    assert kinds.index("job.pause_requested") >= 0
    assert {"job.pause_withdrawn", "job.paused"} & {*kinds}


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_every_view_is_readable_on_a_phone_and_in_the_dark(
    browser: Any, service: Embedded, job: str, width: int, scheme: str
) -> None:
    with tab(browser, service.url, width, scheme) as opened:
        for view in (*VIEWS, f"jobs/{job}"):
            opened.open(view)
            opened.page.locator("main h1").wait_for(timeout=PATIENCE_MS)
            assert opened.findings() == []
            wide = opened.page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{view} is {wide} pixels wide on a screen of {width}"


def test_the_page_loads_nothing_from_elsewhere_and_is_small(service: Embedded, browser: Any) -> None:
    with tab(browser, service.url) as opened:
        sizes: dict[str, int] = {}
        opened.page.on("response", lambda answer: sizes.update({answer.url: len(answer.body())}))
        opened.open("jobs")
        opened.page.locator("main h1").wait_for(timeout=PATIENCE_MS)
        files = {url: size for url, size in sizes.items() if "/v1/" not in url}
        assert all(url.startswith(service.url) for url in sizes)
        assert sum(files.values()) < 200_000
