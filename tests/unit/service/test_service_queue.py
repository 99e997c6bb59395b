"""The order of the queue, what fits, and what follows a failure."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster.policies.offerings import CapacityType, Offering
from cluster.policies.placement import Placement
from cluster.policies.policies import CapacityRule, Policies
from cluster.scheduling.fitting import slots
from cluster.scheduling.placing import beside, count_of, place
from cluster.scheduling.pool_sizes import PoolSize, complete_pools
from cluster.scheduling.queue_order import WAITS_IN_QUEUE, in_order, placed
from cluster.scheduling.starts import describe
from cluster.scheduling.view import NodeView
from remora.spec.worker_sizes import WorkerSizes
from remora.states import EndReason, JobState
from service.queue import intake, retry
from service.queue.driver_records import (
    MAX_ADDRESSES,
    InvalidRecord,
    ProgressRecord,
    clean_json,
    clean_text,
    read,
)
from service.queue.rows import AttemptRow, JobRow
from tests.service_fakes import job_row
from tests.unit.service.queue_worlds import decide, ready, running
from trainers.plan import Record

CPU = {"CPU": 1.0}
POOL = PoolSize("local", 3, CPU)
LOSSES = [one for one in EndReason if not one.is_users and not one.is_final and one is not EndReason.PAUSED]


def ready_nodes(count: int, resources: dict[str, float] | None = None) -> list[NodeView]:
    return [ready(f"node_{number}", "local", resources or CPU) for number in range(count)]


def launched() -> AttemptRow:
    """An attempt whose driver had its plan."""
    return AttemptRow(id="att_1", job_id="job_1", attempt=1, created_at=0.0, launched_at=1.0)


class TestOrdering:
    def test_higher_priority_first_then_who_came_first(self) -> None:
        low, first, second, high = (
            job_row(priority=priority, now=now)
            for priority, now in ((10, 1.0), (50, 2.0), (50, 3.0), (90, 4.0))
        )
        assert in_order([low, second, high, first]) == [high, first, second, low]

    def test_of_equal_priority_a_job_whose_deadline_is_near_comes_first(self) -> None:
        first, urgent, high = (
            job_row(priority=priority, now=now) for priority, now in ((50, 1.0), (50, 2.0), (90, 3.0))
        )
        assert in_order([first, urgent, high], {urgent.id}) == [high, urgent, first]

    @pytest.mark.parametrize(
        ("ahead", "in_project", "said"),
        [
            (1, False, ": 1 job is ahead of it"),
            (2, False, ": 2 jobs are ahead of it"),
            (1, True, ": 1 job of its project is ahead of it"),
            (7, True, ": 7 jobs of its project are ahead of it"),
            (0, False, ""),
            (None, True, ""),
        ],
    )
    def test_a_job_that_waits_in_the_queue_is_shown_its_place_and_no_other_one_is(
        self, ahead: int | None, in_project: bool, said: str
    ) -> None:
        assert placed(WAITS_IN_QUEUE, ahead, in_project=in_project) == f"{WAITS_IN_QUEUE}{said}"
        for other in ("waits for nodes", "", None):
            assert placed(other, ahead, in_project=in_project) == other


class TestAdmission:
    def test_a_job_starts_with_its_smallest_group(self) -> None:
        job = job_row(min_workers=2, max_workers=8)
        assert decide([job], [], ready_nodes(2), [POOL]).starts == (job.id,)

    def test_who_keeps_off_spot_starts_on_demand_or_waits(self) -> None:
        job = job_row()
        spot = ready("node_s", "local", CPU, None, CapacityType.SPOT)
        safe = ready("node_d", "local", CPU, None, CapacityType.ON_DEMAND)
        assert decide([job], [], [spot], [POOL]).starts == (job.id,)
        waits = decide([job], [], [spot], [POOL], off_spot={job.id})
        assert waits.starts == ()
        assert "on-demand" in waits.waits[0].reason
        starts = decide([job], [], [spot, safe], [POOL], off_spot={job.id})
        assert (starts.starts, starts.on_demand) == ((job.id,), {job.id})

    def test_what_a_running_attempt_may_grow_to_is_kept_for_it(self) -> None:
        decision = decide([job_row()], [running(WorkerSizes(3, 3), CPU)], ready_nodes(3), [POOL])
        assert decision.starts == ()
        assert decision.waits[0].waits_for == "waiting_for_turn"

    spots = st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(["1", "2"]), st.sampled_from(CapacityType))
    placements = st.builds(
        Placement,
        pools=st.sampled_from([(), ("a",), ("b", "a")]),
        zones=st.sampled_from([(), ("1",), ("2",)]),
        capacity=st.sampled_from([None, CapacityRule.SPOT, CapacityRule.ON_DEMAND]),
    )

    @settings(derandomize=True, max_examples=200)
    @given(
        st.lists(spots, min_size=1, max_size=5), placements, placements, st.integers(1, 4), st.integers(0, 4)
    )
    def test_what_a_job_may_grow_to_is_kept_only_where_it_may_grow(
        self,
        spots: list[tuple[str, str, CapacityType]],
        grows: Placement,
        starts: Placement,
        most: int,
        held: int,
    ) -> None:
        """Nodes have capacity for one worker each, so that those that are kept can be counted off."""
        nodes = [ready(f"n{at}", pool, CPU, zone, paid) for at, (pool, zone, paid) in enumerate(spots)]
        mine = [one for one in nodes if grows.allows(*one.place)]
        here = mine[: min(held, most)]
        runs = running(WorkerSizes(1, most), CPU, grows)
        on = {one.id for one in here}
        there = [replace(one, jobs={"runs": 1}) if one.id in on else one for one in nodes]
        taken = {one.id for one in mine[: max(most, len(here))]}
        left = [one for one in nodes if one.id not in taken]
        fits = any(starts.allows(*one.place) for one in left)
        placement = {"pools": starts.pools, "zones": starts.zones, "capacity": starts.capacity}
        job = job_row(spec={"placement": {name: value for name, value in placement.items() if value}})
        pools = [PoolSize(name, 5, CPU) for name in ("a", "b")]
        assert decide([job], [runs], there, pools).starts == ((job.id,) if fits else ())

    @settings(derandomize=True)
    @given(st.integers(0, 4), st.lists(st.integers(1, 3), min_size=1, max_size=4))
    def test_what_a_group_has_taken_of_a_node_and_what_is_free_there_are_the_same(
        self, taken: int, sizes: list[int]
    ) -> None:
        """The service knows the workers on a node, and a replay what is free on it."""
        first, *others = ready_nodes(3, {"CPU": 4.0})
        runs = running(WorkerSizes(max(1, taken), max(1, taken)), CPU)
        held = replace(first, jobs={"runs": taken}) if taken else first
        known = replace(held, free={"CPU": 4.0 - taken})
        queue, pools = (
            [job_row(min_workers=n, max_workers=n) for n in sizes],
            [PoolSize("local", 3, {"CPU": 4.0})],
        )
        by_workers = decide(queue, [runs] if taken else [], [held, *others], pools)
        assert decide(queue, [], [known, *others], pools) == by_workers

    def test_no_job_overtakes_a_job_that_could_start_later(self) -> None:
        large, small = job_row(min_workers=3, max_workers=3), job_row()
        decision = decide([large, small], [running(WorkerSizes(1, 1), CPU)], ready_nodes(3), [POOL])
        assert decision.starts == ()
        assert [wait.job_id for wait in decision.waits] == [large.id, small.id]

    def test_a_job_that_can_never_fit_stops_no_other_job(self) -> None:
        never, small = job_row(min_workers=4, max_workers=4), job_row()
        decision = decide([never, small], [], ready_nodes(3), [POOL])
        assert decision.starts == (small.id,)
        assert "capacity for 3" in decision.waits[0].reason

    @pytest.mark.parametrize("place", range(3))
    def test_a_job_that_can_never_fit_says_so_wherever_it_is_in_the_queue(self, place: int) -> None:
        queue = [job_row(min_workers=3, max_workers=3), job_row()]
        queue.insert(place, never := job_row(min_workers=4, max_workers=4))
        decision = decide(queue, [running(WorkerSizes(1, 1), CPU)], ready_nodes(3), [POOL])
        assert decision.starts == ()
        assert [one.job_id for one in decision.waits if one.is_hopeless] == [never.id]
        assert "the complete pools have capacity for 3" in decision.waits[place].reason

    @pytest.mark.parametrize(
        ("worker", "said"),
        [
            ({"CPU": 2.0}, "no node of the pools has 2 CPU"),
            ({"CPU": 1.0, "GPU": 1.0}, "no node of the pools has 1 CPU, 1 GPU"),
        ],
    )
    def test_a_worker_too_large_for_any_node_says_so(self, worker: dict[str, float], said: str) -> None:
        (wait,) = decide([job_row(worker_resources=worker)], [], ready_nodes(3), [POOL]).waits
        assert said in wait.reason

    def test_a_worker_that_fits_on_no_single_size_is_hopeless_and_stops_no_other_job(self) -> None:
        """One size has the processors, and another one the GPU: no node has both."""
        sold = [
            Offering(
                size=size, zone=None, capacity=CapacityType.SPOT, resources=resources, price_per_hour=1.0
            )
            for size, resources in (("wide", {"CPU": 16.0}), ("quick", {"CPU": 4.0, "GPU": 1.0}))
        ]
        policies = Policies.model_validate({"pools": {"p": {"sizes": ["wide", "quick"], "zones": ["any"]}}})
        pools = complete_pools(policies, sold, lambda pool: pool.max_nodes)
        both, small = job_row(worker_resources={"CPU": 8.0, "GPU": 1.0}), job_row()
        decision = decide([both, small], [], [ready("n", "p", {"CPU": 4.0, "GPU": 1.0})], pools)
        assert decision.starts == (small.id,)
        assert [wait.is_hopeless for wait in decision.waits] == [True]

    def test_a_job_starts_with_a_size_that_is_possible_and_leaves_the_rest_to_others(self) -> None:
        """With two or four workers it leaves a third node alone, before it starts and while it runs."""
        spec = {"backend": "deepspeed", "elastic": {"global_batch": 4}}
        pair = job_row(min_workers=2, max_workers=4, spec=spec)
        other = job_row(min_workers=1, max_workers=1)
        assert decide([pair, other], [], ready_nodes(3), [POOL]).starts == (pair.id, other.id)
        runs = running(pair.facts.sizes, CPU)
        for count, begun in ((3, (other.id,)), (4, ())):
            first, second, *others = ready_nodes(count)
            nodes = [replace(first, jobs={"runs": 1}), replace(second, jobs={"runs": 1}), *others]
            assert decide([other], [runs], nodes, [POOL]).starts == begun

    def test_a_least_size_that_is_not_possible_counts_as_the_next_one(self) -> None:
        """A job that can use 4 or 8 and says at least 3 waits for 4."""
        spec = {"backend": "deepspeed", "elastic": {"global_batch": 8}}
        job = job_row(min_workers=3, max_workers=8, spec=spec)
        (wait,) = decide([job], [], ready_nodes(3), [PoolSize("local", 4, CPU)]).waits
        assert "it needs 4 workers" in wait.reason
        (wait,) = decide([job], [], ready_nodes(3), [POOL]).waits
        assert wait.is_hopeless

    def test_a_job_starts_on_nodes_that_it_accepts_and_leaves_the_others_to_others(self) -> None:
        picky = job_row(min_workers=1, max_workers=8, spec={"placement": {"pools": ["b"]}})
        other = job_row(min_workers=2, max_workers=2)
        nodes = [*ready_nodes(2), ready("node_b", "b", CPU)]
        decision = decide([picky, other], [], nodes, [POOL, PoolSize("b", 1, CPU)])
        assert decision.starts == (picky.id, other.id)

    def test_nodes_of_another_pool_zone_or_capacity_type_do_not_count(self) -> None:
        spot = ready("node_s", "local", CPU, "1", CapacityType.SPOT)
        for placement, fits_in in (
            ({"pools": ["b"]}, False),
            ({"zones": ["2"]}, False),
            ({"capacity": "on-demand"}, False),
            ({"pools": ["b", "local"], "zones": ["1", "2"], "capacity": "spot"}, True),
            ({"capacity": "prefer-spot"}, True),
        ):
            job = job_row(spec={"placement": placement})
            assert bool(decide([job], [], [spot], [POOL, PoolSize("b", 3, CPU)]).starts) is fits_in, placement

    def test_workers_count_where_they_are(self) -> None:
        """A claim that anything would satisfy does not keep a node free that it uses."""
        first, second = ready("node_0", "local", CPU), ready("node_b", "b", CPU)
        picky = job_row(spec={"placement": {"pools": ["b"]}})
        pools, runs = [POOL, PoolSize("b", 1, CPU)], running(WorkerSizes(1, 1), CPU)
        beside = [replace(first, jobs={"runs": 1}), second]
        assert decide([picky], [runs], beside, pools).starts == (picky.id,)
        (wait,) = decide([picky], [runs], [first, replace(second, jobs={"runs": 1})], pools).waits
        assert wait.waits_for == "waiting_for_turn"

    @pytest.mark.parametrize(
        ("placement", "said"),
        [
            ({"pools": ["a100"]}, "there is no pool a100: change `placement.pools`; the pools are local"),
            (
                {"capacity": "spot"},
                "no pool has nodes of spot capacity: change `placement`; the pools are local",
            ),
            ({"zones": ["7"]}, "no pool has nodes of zone 7: change `placement`; the pools are local"),
        ],
    )
    def test_a_job_that_no_pool_can_ever_hold_says_why_and_stops_no_other_job(
        self, placement: dict[str, object], said: str
    ) -> None:
        pool = PoolSize("local", 3, CPU, ("any",), (CapacityType.ON_DEMAND,))
        never, small = job_row(spec={"placement": placement}), job_row()
        decision = decide([never, small], [], ready_nodes(3), [pool])
        assert decision.starts == (small.id,)
        assert decision.waits[0].reason == said

    def test_no_pools_no_nodes(self) -> None:
        assert decide([job_row()], [], [], []).waits[0].waits_for == "waiting_for_nodes"

    worker = st.fixed_dictionaries({"CPU": st.sampled_from([0.5, 1.0, 2.0, 3.0])})
    node = st.fixed_dictionaries({"CPU": st.sampled_from([1.0, 2.0, 4.0])})

    @settings(derandomize=True)
    @given(st.lists(node, max_size=5), st.integers(0, 10), worker)
    def test_nothing_is_placed_twice(
        self, nodes: list[dict[str, float]], workers: int, worker: dict[str, float]
    ) -> None:
        places = place(nodes, workers, worker)
        placed, after = count_of(places), beside(nodes, places, worker)
        assert 0 <= placed <= workers
        assert all(free["CPU"] >= -1e-9 for free in after)
        used = sum(before["CPU"] - left["CPU"] for before, left in zip(nodes, after, strict=True))
        assert used == pytest.approx(placed * worker["CPU"])
        assert placed == workers or all(slots(free, worker) == 0 for free in after)

    demand = st.tuples(st.integers(1, 4), st.integers(0, 4), worker)

    @settings(derandomize=True)
    @given(st.lists(demand, max_size=6), st.lists(demand, max_size=3), st.integers(0, 5))
    def test_every_job_is_started_or_says_why_not(
        self,
        queue: list[tuple[int, int, dict[str, float]]],
        held: list[tuple[int, int, dict[str, float]]],
        count: int,
    ) -> None:
        jobs = [
            job_row(min_workers=low, max_workers=low + more, worker_resources=worker)
            for low, more, worker in queue
        ]
        nodes = ready_nodes(count, {"CPU": 2.0})
        others = [
            running(WorkerSizes(low, low), worker, name=f"runs_{number}")
            for number, (low, _, worker) in enumerate(held)
        ]
        decision = decide(jobs, others, nodes, [PoolSize("local", 5, {"CPU": 2.0})])
        reported = [wait.job_id or "" for wait in decision.waits]
        assert sorted([*decision.starts, *reported]) == sorted(job.id for job in jobs)
        assert all(wait.reason for wait in decision.waits)
        # What starts finds capacity together, beside what is held.
        free = [dict(node.resources) for node in nodes]
        for one in others:
            free = beside(free, place(free, one.max_workers, one.worker_resources), one.worker_resources)
        for job in jobs:
            if job.id in decision.starts:
                places = place(free, job.max_workers, job.worker_resources)
                free = beside(free, places, job.worker_resources)
                assert count_of(places) >= job.min_workers


class TestRetry:
    @pytest.mark.parametrize(
        ("reason", "state"),
        [
            (EndReason.COMPLETED, JobState.SUCCEEDED),
            (EndReason.CANCELLED, JobState.CANCELLED),
            (EndReason.RUN_TIME_EXCEEDED, JobState.FAILED),
            (EndReason.START_FAILED, JobState.FAILED),
        ],
    )
    def test_these_are_final(self, reason: EndReason, state: JobState) -> None:
        decision = retry.after(job_row(), launched(), reason, "over", 0.0, by_driver=True)
        assert isinstance(decision, retry.Finish)
        assert decision.state is state

    @pytest.mark.parametrize(
        "reason", [one for one in EndReason if one.is_users and one is not EndReason.START_FAILED]
    )
    def test_the_users_failures_count(self, reason: EndReason) -> None:
        again = retry.after(
            job_row(retry_limit=2, user_failures=1), launched(), reason, "over", 0.0, by_driver=True
        )
        assert isinstance(again, retry.Again)
        assert again.user_failures == 2
        assert isinstance(
            retry.after(
                job_row(retry_limit=2, user_failures=2), launched(), reason, "over", 0.0, by_driver=True
            ),
            retry.Finish,
        )

    @pytest.mark.parametrize(
        ("rules", "code", "log_match", "is_retried"),
        [
            ({}, 1, None, True),
            ({"on_exit_codes": [75, "128-255"]}, 75, None, True),
            ({"on_exit_codes": [75, "128-255"]}, 200, None, True),
            ({"on_exit_codes": [75, "128-255"]}, 76, None, False),
            ({"on_log_patterns": ["NCCL"]}, 1, "NCCL", True),
            ({"on_log_patterns": ["NCCL"]}, 1, None, False),
            ({"on_exit_codes": [3], "on_log_patterns": ["NCCL"]}, 3, None, True),
            ({"on_exit_codes": [3], "on_log_patterns": ["NCCL"]}, 4, "NCCL", True),
        ],
    )
    def test_a_job_says_which_exit_codes_are_retried(
        self, rules: dict[str, object], code: int, log_match: str | None, is_retried: bool
    ) -> None:
        job = job_row(spec={"retry": rules})
        attempt = replace(launched(), exit_code=code, log_match=log_match)
        after = retry.after(job, attempt, EndReason.EXIT_CODE, "It ended.", 0.0, by_driver=True)
        assert isinstance(after, retry.Again) is is_retried
        if isinstance(after, retry.Finish):
            assert after.message.startswith("It ended; it is not retried: ")
        lost = retry.after(job, attempt, EndReason.SIGNAL, "It was killed.", 0.0, by_driver=True)
        assert isinstance(lost, retry.Again), "a signal is no exit code"

    @pytest.mark.parametrize(
        ("rules", "said"),
        [
            ({"on_exit_codes": [75, "128-255"]}, "not among retry.on_exit_codes (75, 128 to 255)"),
            ({"on_log_patterns": ["NCCL"]}, "no line of its log has a text of retry.on_log_patterns"),
            (
                {"on_exit_codes": [75], "on_log_patterns": ["NCCL"]},
                "not among retry.on_exit_codes (75) and no line of its log has a text of retry.on_log_patterns",
            ),
        ],
    )
    def test_a_job_that_is_not_retried_says_by_which_of_its_rules(
        self, rules: dict[str, object], said: str
    ) -> None:
        attempt = replace(launched(), exit_code=1)
        end = retry.after(
            job_row(spec={"retry": rules}), attempt, EndReason.EXIT_CODE, "It ended.", 0.0, by_driver=True
        )
        assert isinstance(end, retry.Finish)
        assert end.message == f"It ended; it is not retried: {said}"

    def test_a_pattern_is_compared_as_it_is_with_each_line(self) -> None:
        rules = job_row(spec={"retry": {"on_log_patterns": ["a.c", "(a+)+$"]}}).facts.retry_rules
        assert rules.match(["abc", "a" * 16_000]) is None
        assert rules.match(["x", "1 a.c 2"]) == "a.c"
        assert rules.match(["x" * 4093 + "a.c"]) == "a.c"
        assert rules.match(["x" * 4094 + "a.c"]) is None

    @pytest.mark.parametrize("reason", LOSSES)
    def test_losses_do_not_count_but_are_bounded(self, reason: EndReason) -> None:
        again = retry.after(
            job_row(retry_limit=0, losses=99), launched(), reason, "over", 0.0, by_driver=True
        )
        assert isinstance(again, retry.Again)
        assert (again.user_failures, again.losses) == (0, 100)
        assert isinstance(
            retry.after(job_row(losses=100), launched(), reason, "over", 0.0, by_driver=True), retry.Finish
        )

    @given(*[st.integers(0, 100)] * 5)
    def test_a_pause_counts_as_nothing(
        self, limit: int, failures: int, losses: int, streak: int, fruitless: int
    ) -> None:
        counts = {
            "user_failures": failures, "losses": losses, "loss_streak": streak, "fruitless": fruitless,
        }  # fmt: skip
        job = job_row(retry_limit=limit, **counts)
        again = retry.after(job, launched(), EndReason.PAUSED, "over", 7.0, by_driver=True)
        assert isinstance(again, retry.Again)
        assert again.not_before == 7.0
        assert {name: getattr(again, name) for name in counts} == counts

    @settings(derandomize=True)
    @given(
        st.integers(0, 3),
        st.lists(
            st.sampled_from([EndReason.EXIT_CODE, EndReason.SIGNAL, EndReason.NODE_LOST, EndReason.EVICTED])
        ),
    )
    def test_a_job_fails_with_the_failure_after_its_last_retry_whatever_was_lost_between_them(
        self, limit: int, ends: list[EndReason]
    ) -> None:
        job, failures = job_row(retry_limit=limit), 0
        for end in ends:
            failures += end.is_users
            after = retry.after(job, launched(), end, "over", 0.0, by_driver=True)
            assert isinstance(after, retry.Finish) is (failures > limit)
            if isinstance(after, retry.Finish):
                return
            assert after.user_failures == failures
            job = replace(job, user_failures=failures, losses=after.losses, loss_streak=after.loss_streak)

    @pytest.mark.parametrize("reason", [EndReason.SUPERVISOR_LOST, EndReason.DRIVER_LOST])
    def test_the_third_loss_in_a_row_on_living_nodes_ends_a_job_without_progress(
        self, reason: EndReason
    ) -> None:
        job = job_row(retry_limit=0)
        for count in (1, 2):
            again = retry.after(job, launched(), reason, "over", 0.0, by_driver=True)
            assert isinstance(again, retry.Again)
            assert again.fruitless == count
            job = replace(job, losses=again.losses, fruitless=again.fruitless)
        end = retry.after(job, launched(), reason, "The driver died.", 0.0, by_driver=True)
        assert isinstance(end, retry.Finish)
        assert (end.state, end.reason) == (JobState.FAILED, "no_progress")
        assert end.message.startswith("The driver died; 3 attempts in a row were lost")

    @pytest.mark.parametrize("reason", [EndReason.NODE_LOST, EndReason.HEAD_LOST, EndReason.EVICTED])
    def test_what_takes_nodes_away_never_ends_a_job_for_want_of_progress(self, reason: EndReason) -> None:
        again = retry.after(job_row(fruitless=2), launched(), reason, "over", 0.0, by_driver=True)
        assert isinstance(again, retry.Again)
        assert again.fruitless == 2, "nor does it hide the losses before"

    def test_nor_does_a_driver_that_died_before_it_had_workers(self) -> None:
        job, attempt = job_row(fruitless=2), launched()
        again = retry.after(job, attempt, EndReason.DRIVER_LOST, "over", 0.0, by_driver=False)
        assert isinstance(again, retry.Again)
        assert again.fruitless == 2
        trained = replace(attempt, started_at=2.0)
        end = retry.after(job, trained, EndReason.DRIVER_LOST, "over", 0.0, by_driver=False)
        assert isinstance(end, retry.Finish), "what it ran may have killed it"

    def test_a_cancelled_job_never_goes_on(self) -> None:
        for reason in set(EndReason) - {EndReason.COMPLETED}:
            decision = retry.after(
                job_row(cancel_requested_at=1.0), launched(), reason, "over", 0.0, by_driver=True
            )
            assert isinstance(decision, retry.Finish)
            assert decision.state is JobState.CANCELLED

    @given(st.floats(0.001, 1e6), st.integers(1, 12) | st.integers(1, 2000), st.floats(0.001, 1e6))
    @example(0.5, 3, 60.0)
    def test_a_pause_doubles_from_the_first_up_to_its_cap(
        self, first_s: float, count: int, cap_s: float
    ) -> None:
        assert retry.backoff(first_s, 1, cap_s) == min(first_s, cap_s)
        pause_s = retry.backoff(first_s, count, cap_s)
        assert retry.backoff(first_s, count + 1, cap_s) == min(2.0 * pause_s, cap_s)
        assert retry.backoff(first_s, 10**6, cap_s) == cap_s

    @settings(derandomize=True)
    @given(st.sampled_from(EndReason), st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
    def test_a_pause_grows_and_is_capped(
        self, reason: EndReason, failures: int, losses: int, streak: int
    ) -> None:
        def pause(streak: int, failures: int) -> float:
            job: JobRow = job_row(
                retry_limit=1000, user_failures=failures, losses=min(losses, 99), loss_streak=streak
            )
            decision = retry.after(job, launched(), reason, "over", 0.0, by_driver=True)
            return decision.not_before if isinstance(decision, retry.Again) else 0.0

        assert 0.0 <= pause(streak, failures) <= 300.0
        assert pause(streak + 1, failures + 1) >= pause(streak, failures)


class TestIntake:
    def test_the_number_exceeded_is_named(self) -> None:
        assert intake.check(9, 10) is None
        refusal = intake.check(10, 10)
        assert refusal is not None
        assert "10" in refusal.message

    def test_a_project_may_have_fewer(self) -> None:
        assert intake.check_project("vision", 1, 2) is None
        refusal = intake.check_project("vision", 2, 2)
        assert refusal is not None
        assert refusal.message == "2 jobs of the project vision wait or run and its limit is 2"


class TestRecords:
    junk = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=8,
    )

    @settings(derandomize=True)
    @given(
        st.sampled_from(["event", "log", "metric", "checkpoint", "progress", "ended", "other"]),
        st.dictionaries(
            st.sampled_from(
                ["kind", "message", "data", "rank", "stream", "text", "step", "values", "deleted", "workers"]
            ),
            junk,
        ),
    )
    def test_whatever_a_driver_reports_is_read_or_refused(self, kind: str, body: dict[str, object]) -> None:
        said = read(Record(seq=1, at=1.0, kind=kind, body=body))  # type: ignore[arg-type]
        if isinstance(said, InvalidRecord):
            assert said.why
        said.model_dump_json()

    @pytest.mark.parametrize(
        ("workers", "read_as"),
        [
            ({"10.0.0.1": 2, "10.0.0.2": 1}, {"10.0.0.1": 2, "10.0.0.2": 1}),
            ({}, {}),
            (None, None),
            ({"10.0.0.\x00": 1}, {"10.0.0.\ufffd": 1}),
            ({str(number): 1 for number in range(MAX_ADDRESSES + 1)}, "refused"),
            ({"10.0.0.1": -1}, "refused"),
            ({"10.0.0.1": 2**60}, "refused"),
            ({"a" * 300: 1}, "refused"),
        ],
    )
    def test_workers_are_read_by_the_address_of_their_node(self, workers: object, read_as: object) -> None:
        said = read(Record(seq=1, at=1.0, kind="progress", body={"workers": workers}))
        assert isinstance(said, ProgressRecord | InvalidRecord)
        assert (said.workers if isinstance(said, ProgressRecord) else "refused") == read_as

    @settings(derandomize=True)
    @given(st.text(st.characters(), max_size=20))
    def test_clean_text_can_be_stored(self, text: str) -> None:
        clean = clean_text(text)
        assert isinstance(clean, str)
        assert "\x00" not in clean
        clean.encode()

    def test_deep_and_wild_data_becomes_json(self) -> None:
        deep: list[object] = []
        for _ in range(100):
            deep = [deep]
        assert "..." in str(clean_json(deep))
        assert clean_json({1: {2, 3}, "x": b"y"})["x"] == "b'y'"


def test_resources_are_described_for_people() -> None:
    assert describe({"CPU": 2.0, "GPU": 0.0, "memory": 2.0**31}) == "2 CPU, 2.0 GiB memory"
