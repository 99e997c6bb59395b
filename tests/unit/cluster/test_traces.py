"""Traces are read as they were written, and a bad line is refused by its number."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from statistics import mean, median

import pytest

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import ANYWHERE, Placement
from cluster.policies.policies import CapacityRule
from cluster.traces.files import TraceFile, read_files, read_philly, read_skypilot
from cluster.traces.generator import CLUSTERS, GeneratorOptions, generate_jobs, generated, size_chances
from cluster.traces.lines import read_lines, write_lines
from cluster.traces.trace import Trace, TraceError
from remora.spec.worker_sizes import WorkerSizes

JOB = {
    "kind": "job",
    "id": "a",
    "at_s": 5,
    "workers": {"min": 1, "max": 4},
    "resources": {"GPU": 1},
    "work_s": 60,
}
SPOT = Offering(
    size="gpu8", zone="1", capacity=CapacityType.SPOT, resources={"CPU": 32.0, "GPU": 8.0}, price_per_hour=3.0
)


def test_a_generated_trace_is_the_same_after_it_was_written_and_read() -> None:
    trace = generated(GeneratorOptions(seed=3, jobs=200, span_s=86_400), [SPOT], spot_nodes=10)
    assert read_lines("\n".join(write_lines(trace))) == trace


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"workers": {"min": 5, "max": 4}}, "workers.min is 5 and above workers.max"),
        (
            {"workers": {"min": 2, "max": 5, "multiple_of": 2}},
            "workers.max is 5; both have to be multiples of 2",
        ),
        ({"budget": 0}, "budget: should be greater than 0"),
        ({"work_s": -1}, "work_s: should be greater than or equal to 0"),
        ({"work_s": None}, "work_s: should be a valid number"),
        ({"work_s": math.nan}, "work_s: should be a finite number"),
        ({"resources": {"GPU": math.inf}}, "resources.GPU: should be a finite number"),
        ({"kind": "task"}, "kind"),
        ({"resources": {}}, "resources"),
        ({"gpus": 3}, "gpus: Extra inputs are not permitted"),
        ({"placement": "spot"}, "placement: should be an object"),
        ({"placement": {"zone": "1"}}, "placement.zone: Extra inputs are not permitted"),
        (
            {"placement": {"capacity": "cheap"}},
            "placement.capacity: should be 'spot', 'on-demand', 'prefer-spot'",
        ),
        ({"placement": {"fabric": "ethernet"}}, "placement.fabric: should be 'any' or 'infiniband'"),
        ({"placement": {"pools": ["a", "a"]}}, "placement.pools: a is there twice"),
        (
            {"placement": {"pools": "A b"}},
            "placement.pools.0: 'A b' given, expected a list of names: 1 to 63 of",
        ),
        ({"placement": {"zones": [["1"]]}}, "placement.zones.0: ['1'] given, expected a list of zones"),
    ],
)
def test_a_bad_line_is_refused_with_its_number_and_field(change: dict[str, object], said: str) -> None:
    text = "\n".join(["", json.dumps(JOB), json.dumps({**JOB, **change})])
    with pytest.raises(TraceError, match=r"^jobs\.jsonl, line 3: ") as refused:
        read_lines(text, "jobs.jsonl")
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_placement_is_the_same_after_it_was_written_and_read() -> None:
    asked = Placement(
        pools=("a", "b"), zones=("1", "3"), capacity=CapacityRule.PREFER_SPOT, needs_fabric=True
    )
    (job,) = read_lines(json.dumps(JOB)).jobs
    for placement in (asked, Placement(zones=("2",)), Placement(needs_fabric=True), ANYWHERE):
        placed = Trace(jobs=(replace(job, placement=placement),))
        assert read_lines("\n".join(write_lines(placed))) == placed


def test_quotas_are_the_same_after_they_were_written_and_read_whatever_their_case() -> None:
    lines = [
        {"kind": "quota", "name": "Spot", "units": 96},
        {"kind": "quota", "name": "gpu8Family", "units": 0},
    ]
    trace = read_lines("\n".join(map(json.dumps, lines)))
    assert trace.quotas == {"spot": 96, "gpu8family": 0}
    assert read_lines("\n".join(write_lines(trace))) == trace


def test_a_quota_that_stands_twice_or_that_no_offering_uses_is_refused() -> None:
    def file(name: str, quota: str, units: int) -> TraceFile:
        return TraceFile(name=name, text=json.dumps({"kind": "quota", "name": quota, "units": units}))

    sold = {
        "kind": "offering",
        "size": "gpu8",
        "capacity": "spot",
        "resources": {"GPU": 8},
        "price_per_hour": 3,
    }
    offerings = TraceFile(name="sold", text=json.dumps({**sold, "quota": "Spot", "quota_units": 4}))
    assert read_files([offerings, file("one", "SPOT", 8)]).quotas == {"spot": 8}
    with pytest.raises(TraceError, match="no offering uses the quota 'spott'; quotas of the offerings: spot"):
        read_files([offerings, file("one", "spott", 8)])
    with pytest.raises(TraceError, match="the quota 'spot' stands twice in the trace"):
        read_files([offerings, file("one", "Spot", 8), file("two", "spot", 9)])
    with pytest.raises(TraceError, match="line 2: the quota 'SPOT' stands twice in the trace"):
        read_lines("\n".join([file("one", "spot", 8).text, file("one", "SPOT", 8).text]))
    with pytest.raises(TraceError, match="line 1: units: should be greater than or equal to 0"):
        read_lines(file("one", "spot", -1).text)


def test_budgets_and_whole_copies_are_the_same_after_they_were_written_and_read() -> None:
    (job,) = read_lines(json.dumps(JOB)).jobs
    assert (job.budget, job.sizes) == (None, WorkerSizes(1, 4))
    for least, most in ((2, 8), (4, 4)):
        paid = replace(job, sizes=WorkerSizes(least, most, 2), budget=12.5)
        is_divided = replace(job, sizes=WorkerSizes(least, most, divided=20), id="c")
        trace = Trace(jobs=(paid, replace(job, id="b"), is_divided))
        assert read_lines("\n".join(write_lines(trace))) == trace


def test_a_job_without_a_placement_may_run_anywhere() -> None:
    empty = {"pools": [], "zones": [], "capacity": None, "fabric": "any"}
    lines = [JOB, {**JOB, "id": "b", "placement": {}}, {**JOB, "id": "c", "placement": empty}]
    read = read_lines("\n".join(map(json.dumps, lines)))
    assert all(job.placement is ANYWHERE for job in read.jobs)
    assert not any("placement" in line for line in write_lines(read))


def test_a_single_pool_or_zone_needs_no_list() -> None:
    (job,) = read_lines(json.dumps({**JOB, "placement": {"pools": "a", "zones": 2}})).jobs
    assert job.placement == Placement(pools=("a",), zones=("2",))


def test_a_line_that_is_no_json_is_refused() -> None:
    with pytest.raises(TraceError, match="line 1: Invalid JSON"):
        read_lines("{")


def test_a_philly_job_has_the_work_of_all_its_attempts() -> None:
    trace = read_philly(
        json.dumps([philly("b", "00:10:00", 60), philly("a", "00:00:00", 100, 50), philly("c", "00:01:00")])
    )
    assert [(job.id, job.at_s, job.min_workers, job.work_s, job.project) for job in trace.jobs] == [
        ("b", 600.0, 2, 120.0, "vc"),
        ("a", 0.0, 2, 300.0, "vc"),
    ]
    assert trace.notes == ("trace: 1 jobs that never ran on a GPU are left out",)


def philly(name: str, clock: str, *attempts: int) -> dict[str, object]:
    def tried(seconds: int) -> dict[str, object]:
        end = f"2017-10-09 {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
        places = [{"ip": "m1", "gpus": ["gpu0"]}, {"ip": "m2", "gpus": ["gpu3"]}]
        return {"start_time": "2017-10-09 00:00:00", "end_time": end, "detail": places}

    unfinished = {"start_time": None, "end_time": None, "detail": []}
    return {
        "status": "Pass",
        "vc": "vc",
        "jobid": name,
        "user": "u",
        "submitted_time": f"2017-10-09 {clock}",
        "attempts": [*map(tried, attempts), unfinished],
    }


def ran_until(end: float) -> dict[str, object]:
    attempt = {"start_time": 0, "end_time": end, "detail": [{"ip": "m1", "gpus": ["gpu0"]}]}
    return {**philly("a", "00:00:00"), "attempts": [attempt]}


def test_a_job_log_that_is_nested_without_end_is_refused_as_one() -> None:
    with pytest.raises(TraceError, match=r"^log: its JSON is nested too deeply"):
        read_philly("[" * 200_000, "log")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        (3, "it is not a JSON object"),
        ({"jobid": ""}, "jobid"),
        ({**philly("a", "00:00:00", 5), "submitted_time": "yesterday"}, "submitted_time"),
        ({**philly("a", "00:00:00", 5), "submitted_time": math.nan}, "submitted_time: .* finite number"),
        (
            {**philly("a", "00:00:00", 5), "submitted_time": 1e300},
            "submitted_time: .* or equal to 10000000000",
        ),
        (ran_until(math.nan), r"attempts\.0\.end_time: .* finite number"),
        (ran_until(math.inf), r"attempts\.0\.end_time: .* finite number"),
        (ran_until(-1e300), r"attempts\.0\.end_time: .* or equal to 0"),
        (ran_until(1e300), r"attempts\.0\.end_time: .* or equal to 10000000000"),
        (ran_until(9e9), r"its attempts ran 9e\+09 s in all, 1e\+09 s are possible"),
    ],
)
def test_a_bad_philly_job_is_refused_with_its_number(entry: object, said: str) -> None:
    with pytest.raises(TraceError, match=rf"^log, job 2: {said}"):
        read_philly(json.dumps([philly("a", "00:00:00", 5), entry]), "log")


def test_spot_availability_becomes_the_changes_of_an_offering() -> None:
    text = json.dumps({"metadata": {"gap_seconds": 300}, "data": [0, 0, 3, 3, 16]})
    changes = read_skypilot(text, SPOT.id).changes
    assert [(change.at_s, change.nodes) for change in changes] == [(0, 0), (600, 3), (1200, 16)]


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"metadata": {"gap_seconds": 0}, "data": [1]}',
        '{"metadata": {"gap_seconds": NaN}, "data": [1]}',
        json.dumps({"metadata": {"gap_seconds": 1e6}, "data": [1] * 10_001}),
        "[",
        '{"data": []}',
    ],
)
def test_bad_spot_availability_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(TraceError, match=r"^east\.json: [^\n]+$"):
        read_skypilot(text, SPOT.id, "east.json")


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda files: [*files, files[0]], "the job 'a' stands twice"),
        (lambda files: files[:1] + files[2:], "there is no offering 'gpu8/1/spot'"),
        (lambda files: [], "there is no trace"),
        (lambda files: [TraceFile(name="e", text=files[2].text)], "does not say of what"),
    ],
)
def test_files_that_do_not_belong_together_are_refused(
    spoil: Callable[[list[TraceFile]], list[TraceFile]], said: str
) -> None:
    files = [
        TraceFile(name="jobs", text=json.dumps(JOB)),
        TraceFile(
            name="offerings",
            text="\n".join(write_lines(generated(GeneratorOptions(seed=1, jobs=0, span_s=1), [SPOT], 0))),
        ),
        TraceFile(name="east", text='{"metadata": {"gap_seconds": 300}, "data": [1]}', offering=SPOT.id),
    ]
    assert read_files(files).jobs[0].id == "a"
    with pytest.raises(TraceError, match=said):
        read_files(spoil(files))


def test_generated_jobs_have_the_published_distributions() -> None:
    for name, cluster in CLUSTERS.items():
        jobs = generate_jobs(
            GeneratorOptions(seed=7, jobs=4000, span_s=30 * 86_400.0, cluster=cluster, most_gpus=2048)
        )
        times = [job.work_s / job.max_workers for job in jobs]
        assert median(times) == pytest.approx(cluster.median_s, rel=0.2), name
        assert mean(job.max_workers for job in jobs) == pytest.approx(cluster.mean_gpus, rel=0.2), name
        assert jobs[-1].at_s == pytest.approx(30 * 86_400.0, rel=0.1), name
        assert sorted(jobs, key=lambda job: job.at_s) == list(jobs)


def test_sizes_have_the_mean_that_was_asked_for() -> None:
    chances = size_chances(3.72, 64)
    assert sum(chance * 2**power for power, chance in enumerate(chances)) == pytest.approx(3.72)
    assert sum(chances) == pytest.approx(1.0)


def test_the_seed_decides() -> None:
    options = GeneratorOptions(seed=1, jobs=50, span_s=3600)
    assert generated(options, [SPOT], 4) == generated(options, [SPOT], 4)
    assert generated(options, [SPOT], 4) != generated(
        GeneratorOptions(seed=2, jobs=50, span_s=3600), [SPOT], 4
    )
