"""A job that may have another number of workers: its worker group becomes smaller in place, or at a checkpoint."""

from __future__ import annotations

from remora.spec.worker_sizes import WorkerSizes, sizes_of
from tests.unit.trainers.stage import Stage
from tests.unit.trainers.virtual_time import play


def sizes(least: int, most: int) -> WorkerSizes:
    return sizes_of({}, least, most)


def test_workers_beyond_the_largest_size_leave_in_place() -> None:
    async def scene() -> None:
        stage = Stage(4)
        stage.in_place.resize(sizes(1, 2))
        await stage.after(1.0)
        await stage.settled()
        assert stage.regrouped == [("resize", 2)]
        assert stage.order == [0, 1], "those that stay keep their order"
        assert sorted(set(stage.messages("stop"))) == [2, 3]
        assert stage.in_place.absorb({2, 3}, set(), set()) == {2, 3}
        await stage.after(30.0)
        assert len(stage.regrouped) == 1
        assert stage.events("node.lost") == []

    play(scene())


def test_a_group_that_fits_is_left_alone_and_the_next_one_has_the_new_sizes() -> None:
    async def scene() -> None:
        stage = Stage(2, max_workers=2)
        stage.in_place.resize(sizes(1, 3))
        await stage.after(5.0)
        assert stage.events("worker_group.resize") == []
        stage.join()
        await stage.after(1.0)
        await stage.settled()
        assert stage.regrouped == [("grow", 3)]

    play(scene())


def test_a_higher_minimum_does_not_stop_a_group_that_trains_with_fewer() -> None:
    async def scene() -> None:
        stage = Stage(2)
        stage.in_place.resize(sizes(3, 4))
        await stage.after(5.0)
        assert (stage.regrouped, stage.attempt.stop_reason) == ([], None)

    play(scene())


def test_scripts_that_cannot_regroup_stop_at_a_checkpoint() -> None:
    async def scene() -> None:
        stage = Stage(3)
        stage.group_members.elastic.clear()
        stage.in_place.resize(sizes(1, 2))
        await stage.after(1.0)
        assert len(stage.events("worker_group.resize")) == 1
        (decided,) = {
            (message["action"], message["stop"]) for _, message in stage.sent if message["type"] == "decide"
        }
        assert decided == ("checkpoint", True)
        await stage.after(130.0)
        assert len(stage.events("checkpoint.ignored")) == 1, "a script that writes none keeps its workers"
        await stage.after(300.0)
        assert len(stage.events("worker_group.resize")) == 1, "and it is not asked again"

    play(scene())


def test_a_change_under_way_is_finished_first() -> None:
    async def scene() -> None:
        stage = Stage(4)
        stage.kill(3)
        stage.in_place.resize(sizes(1, 2))
        await stage.settled()
        await stage.after(1.0)
        await stage.settled()
        assert [size for _, size in stage.regrouped] == [3, 2]

    play(scene())


def test_the_newest_sizes_count() -> None:
    async def scene() -> None:
        stage = Stage(4)
        stage.kill(3)
        stage.in_place.resize(sizes(1, 2))
        stage.in_place.resize(sizes(1, 4))
        await stage.settled()
        await stage.after(2.0)
        assert [size for _, size in stage.regrouped] == [3]

    play(scene())
