"""Every millisecond of a node that is paid for has one payer and one cause, and all sums agree to the last unit."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.queue.accounts import amount_of, rounded, shown, sums, total_of
from service.queue.cost_causes import WHOLE, Cause, Payer, Span, micro_usd, spans_of, to_ms
from service.queue.costs import By, cost_lines, parts_of, ranges_of
from service.queue.focus_export import COLUMNS, focus_rows
from service.queue.ledger import UseRow
from service.queue.rows import NodeRow, PhaseRow, WorkPhase

#: 1 USD for 1000 s, with two GPUs.
NODE = NodeRow(
    id="node_1", pool="gpu", created_at=90.0, offering="big/1/spot", price_per_hour=3.6, bought_for="job_1",
    launched_at=100.0, ready_at=200.0, ended_at=1100.0, resources={"GPU": 2.0},
)  # fmt: skip
PROJECTS = {"job_1": "vision", "job_2": "speech"}
RANGE = (0, 2_000_000)


def use(
    job_id: str, began_at: float, ended_at: float | None, part: float = 1.0, node_id: str = "node_1"
) -> UseRow:
    return UseRow(
        job_id=job_id, node_id=node_id, began_at=began_at, ended_at=ended_at, attempt=1, workers=1,
        pool="gpu", offering="big/1/spot", part=part, price_per_hour=3.6,
    )  # fmt: skip


def phases(*begun: tuple[float, WorkPhase], job_id: str = "job_1") -> list[PhaseRow]:
    return [
        PhaseRow(job_id=job_id, attempt=1, number=number, began_at=at, phase=phase)
        for number, (at, phase) in enumerate(begun, start=1)
    ]


def account(
    node: NodeRow, uses: list[UseRow], begun: list[PhaseRow] | None = None
) -> dict[tuple[str, str], float]:
    """Seconds of a whole node by payer's name and cause."""
    first = {one.node_id: min(other.began_at for other in uses) for one in uses}
    spans = spans_of([node], uses, begun or [], first, PROJECTS, [RANGE])
    found = sums(spans, {node.id: node}, lambda span, _: (span.name, span.cause.value))
    return {key: one.node_s for key, one in found.items()}


class TestCauses:
    def test_a_job_starts_prepares_trains_saves_and_repeats(self) -> None:
        begun = phases(
            (190.0, WorkPhase.STARTING), (300.0, WorkPhase.PREPARING), (350.0, WorkPhase.RUNNING),
            (400.0, WorkPhase.TRAINING), (500.0, WorkPhase.CHECKPOINT), (501.5, WorkPhase.TRAINING),
            (600.0, WorkPhase.STARTING), (620.0, WorkPhase.RECOMPUTING), (650.0, WorkPhase.TRAINING),
            (1000.0, WorkPhase.DRAINING),
        )  # fmt: skip
        assert account(NODE, [use("job_1", 250.0, 1010.0)], begun) == {
            ("job_1", "provisioning"): 100.0,
            ("vision", "idle_waiting"): 50.0,
            ("job_1", "starting"): 50.0 + 50.0 + 20.0,
            ("job_1", "preparing"): 50.0,
            ("job_1", "training"): 100.0 + 98.5 + 350.0,
            ("job_1", "checkpoint_stall"): 1.5,
            ("job_1", "recomputing"): 30.0,
            ("job_1", "draining"): 10.0,
            ("vision", "idle_kept"): 90.0,
        }

    def test_a_command_that_reports_no_steps_trains_from_its_start(self) -> None:
        begun = phases((200.0, WorkPhase.STARTING), (210.0, WorkPhase.RUNNING))
        assert account(NODE, [use("job_1", 200.0, 1100.0)], begun) == {
            ("job_1", "provisioning"): 100.0,
            ("job_1", "starting"): 10.0,
            ("job_1", "training"): 890.0,
        }

    def test_what_ran_before_phases_were_recorded_trained(self) -> None:
        assert account(NODE, [use("job_1", 200.0, 1100.0)])["job_1", "training"] == 900.0

    @pytest.mark.parametrize(
        ("node", "expected"),
        [
            (replace(NODE, bought_for=None), {("", "provisioning"): 100.0, ("", "idle_unused"): 900.0}),
            (NODE, {("job_1", "provisioning"): 100.0, ("vision", "idle_waiting"): 900.0}),
            (replace(NODE, ready_at=None), {("", "failed"): 1000.0}),
            (
                replace(NODE, leaving_since=900.0),
                {("job_1", "provisioning"): 100.0, ("vision", "idle_waiting"): 700.0, ("vision", "draining"): 200.0},
            ),
            (
                replace(NODE, leaving_since=900.0, is_cut_off=True),
                {("job_1", "provisioning"): 100.0, ("vision", "idle_waiting"): 700.0, ("vision", "failed"): 200.0},
            ),
            (
                replace(NODE, bought_for="ray_1", project="speech"),
                {("speech", "provisioning"): 100.0, ("speech", "ray_programs"): 900.0},
            ),
            (replace(NODE, launched_at=None), {}),
        ],
        ids=["a pool's own", "bought and not used", "never a node", "returned", "cut off", "programs", "no machine"],
    )  # fmt: skip
    def test_what_no_worker_holds_has_a_cause(
        self, node: NodeRow, expected: dict[tuple[str, str], float]
    ) -> None:
        assert account(node, []) == expected

    def test_two_jobs_of_one_node_pay_for_what_they_hold_and_the_rest_is_unused(self) -> None:
        found = account(NODE, [use("job_1", 200.0, 1100.0, 0.5), use("job_2", 200.0, 700.0, 0.25)])
        assert found == {
            ("job_1", "provisioning"): 100.0,
            ("job_1", "training"): 450.0,
            ("job_2", "training"): 125.0,
            ("vision", "idle_unused"): 0.25 * 500.0 + 0.5 * 400.0,
        }

    def test_who_hold_more_than_there_is_pay_less_alike(self) -> None:
        found = account(NODE, [use("job_1", 200.0, 1100.0, 1.0), use("job_2", 200.0, 1100.0, 0.5)])
        assert found["job_1", "training"] == pytest.approx(600.0, abs=0.01)
        assert found["job_2", "training"] == pytest.approx(300.0, abs=0.01)
        assert sum(found.values()) == 1000.0


moments = st.integers(0, 1_000_000).map(lambda at: at / 1000.0)
shares = st.sampled_from([0.1, 0.25, 1 / 3, 0.5, 0.7, 1.0])
World = tuple[list[NodeRow], list[UseRow], list[PhaseRow]]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Nodes in every state, uses that overlap and hold more than there is, and phases in any order."""
    nodes: list[NodeRow] = []
    uses: list[UseRow] = []
    for number in range(draw(st.integers(1, 3))):
        launched, ready, leaves, ended = sorted(draw(st.lists(moments, min_size=4, max_size=4)))
        node = replace(
            NODE, id=f"node_{number}", launched_at=draw(st.sampled_from([launched, None])),
            ready_at=draw(st.sampled_from([ready, None])), leaving_since=draw(st.sampled_from([leaves, None])),
            ended_at=draw(st.sampled_from([ended, None])), is_cut_off=draw(st.booleans()),
            bought_for=draw(st.sampled_from(["job_1", "job_x", None])),
            project=draw(st.sampled_from([None, None, "speech"])),
            price_per_hour=draw(st.sampled_from([0.0, 0.5, 3.6, 0.1234567])),
        )  # fmt: skip
        nodes.append(node)
        for _ in range(draw(st.integers(0, 4))):
            began, until = sorted((draw(moments), draw(moments)))
            job_id = draw(st.sampled_from(["job_1", "job_2"]))
            uses.append(use(job_id, began, draw(st.sampled_from([until, None])), draw(shares), node.id))
    begun = [
        row
        for job_id in ("job_1", "job_2")
        for row in phases(
            *((draw(moments), draw(st.sampled_from(WorkPhase))) for _ in range(draw(st.integers(0, 5)))),
            job_id=job_id,
        )
    ]
    return nodes, uses, begun


def split(world: World, *ranges: tuple[int, int]) -> list[Span]:
    nodes, uses, begun = world
    first: dict[str, float] = {}
    for one in uses:
        first[one.node_id] = min(one.began_at, first.get(one.node_id, one.began_at))
    return list(spans_of(nodes, uses, begun, first, PROJECTS, ranges))


def by_all(spans: list[Span]) -> Counter[tuple[str, Payer, str, Cause]]:
    found: Counter[tuple[str, Payer, str, Cause]] = Counter()
    for span in spans:
        found[span.node_id, span.payer, span.name, span.cause] += span.node_ns
    return found


times = st.lists(st.integers(0, 1_000_000), min_size=3, max_size=3).map(sorted)


@given(worlds(), times)
def test_no_time_is_paid_twice_and_none_is_missing(world: World, at: list[int]) -> None:
    begins, _, ends = at
    paid: Counter[str] = Counter()
    for span in split(world, (begins, ends)):
        assert span.node_ns > 0
        assert (span.payer is Payer.CLUSTER) == (span.name == "")
        paid[span.node_id] += span.node_ns
    for node in world[0]:
        launched = 0 if node.launched_at is None else to_ms(node.launched_at)
        ended = ends if node.ended_at is None else min(ends, to_ms(node.ended_at))
        there = 0 if node.launched_at is None else max(0, ended - max(begins, launched))
        assert paid[node.id] == there * WHOLE


@given(worlds(), times)
def test_what_a_time_went_into_does_not_depend_on_when_or_how_it_is_asked(
    world: World, at: list[int]
) -> None:
    first, middle, last = at
    whole = by_all(split(world, (first, last)))
    assert by_all(split(world, (first, middle))) + by_all(split(world, (middle, last))) == whole
    assert by_all(split(world, (first, middle), (middle, last))) == whole
    nodes, uses, begun = world
    assert by_all(split((nodes[::-1], uses[::-1], begun[::-1]), (first, last))) == whole


@given(worlds(), times, st.lists(st.sampled_from(By), min_size=1, unique=True))
def test_lines_sum_to_the_bill_whatever_they_are_by(world: World, at: list[int], by: list[By]) -> None:
    begins, _, ends = at[0], at[1], at[2] * 10
    nodes = {node.id: node for node in world[0]}
    spans = split(world, *ranges_of(begins, ends, by))
    lines = cost_lines(spans, nodes, by)
    total = total_of(amount_of(span, nodes[span.node_id]) for span in spans)
    (whole,) = shown([total])
    assert sum(line.micro_usd for line in lines) == whole.micro_usd
    assert sum(line.node_ms for line in lines) == whole.node_ms
    assert sum(line.gpu_ms for line in lines) == whole.gpu_ms
    assert total.gpu_ns == 2 * total.node_ns
    billed = sum(
        micro_usd(node.price_per_hour) * ms
        for node in world[0]
        if node.launched_at is not None
        and (ms := (min(ends, to_ms(node.ended_at) if node.ended_at is not None else ends))
            - max(begins, to_ms(node.launched_at))) > 0
    )  # fmt: skip
    assert total.money == billed * WHOLE


@given(worlds(), times)
def test_the_work_of_an_account_is_known_before_it_is_done(world: World, at: list[int]) -> None:
    nodes, uses, _ = world
    ranges = [(at[0], at[1]), (at[1], at[2])]
    lives = [(node.launched_at, node.ended_at) for node in nodes if node.launched_at is not None]
    lives += [(use.began_at, use.ended_at) for use in uses]
    overlaps = [
        max(begins, to_ms(began)) < min(ends, to_ms(ended) if ended is not None else ends)
        for begins, ends in ranges
        for began, ended in lives
    ]
    assert parts_of(nodes, uses, ranges) >= sum(overlaps)
    assert parts_of(nodes, uses, ranges) <= len(overlaps)


@given(st.lists(st.integers(0, 10**15)), st.sampled_from([1, 7, 1000, 3_600_000_000_000]))
def test_rounded_parts_sum_to_the_rounded_whole(values: list[int], unit: int) -> None:
    found = rounded(values, unit)
    assert sum(found) == (2 * sum(values) + unit) // (2 * unit)
    assert all(abs(after * unit - value) < unit for after, value in zip(found, values, strict=True))


def test_hours_are_full_hours_in_utc_and_the_first_and_last_are_cut() -> None:
    node = replace(NODE, launched_at=3500.0, ready_at=3500.0, ended_at=7300.0)
    spans = spans_of([node], [], [], {}, PROJECTS, ranges_of(0, 10_000_000, [By.HOUR]))
    lines = cost_lines(spans, {node.id: node}, [By.HOUR, By.CAPACITY])
    assert [(line.of, line.node_ms) for line in lines] == [
        (("1970-01-01T00:00:00Z", "spot"), 100_000),
        (("1970-01-01T01:00:00Z", "spot"), 3_600_000),
        (("1970-01-01T02:00:00Z", "spot"), 100_000),
    ]
    assert [line.micro_usd for line in lines] == [100_000, 3_600_000, 100_000]


def test_a_row_for_a_provider_of_accounts_names_the_project_where_there_is_one() -> None:
    spans = spans_of([NODE], [use("job_1", 300.0, 400.0)], [], {"node_1": 300.0}, PROJECTS, [RANGE])
    # A node that was bought for no job, and had none.
    spare = replace(NODE, id="node_2", bought_for=None)
    spans = [*spans, *spans_of([spare], [], [], {}, PROJECTS, [RANGE])]
    rows = [
        dict(zip(COLUMNS, cells, strict=True))
        for cells in focus_rows(spans, {"node_1": NODE, "node_2": spare}, "Microsoft")
    ]
    tags = {row["ResourceId"]: json.loads(row["Tags"]) for row in rows}
    assert tags == {"node_1": {"pool": "gpu", "project": "vision"}, "node_2": {"pool": "gpu"}}
