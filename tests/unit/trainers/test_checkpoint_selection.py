"""The newest checkpoints and the best one survive, whatever is written in whatever order."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from trainers.checkpoints.manifest import Manifest
from trainers.checkpoints.selection import Mode, age, best_of, surplus

scores = st.none() | st.integers(-3, 3).map(float)
#: Checkpoints in the order of their age: steps may go back with a new worker group, and groups with a new attempt.
histories = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9), scores), min_size=1, max_size=12)


def written(history: list[tuple[int, int, float | None]]) -> list[Manifest]:
    """Manifests of one job; the first number says what started again: nothing, the group, or the attempt."""
    attempt, generation, step, found = 1, 1, 0, []
    for started, count, score in history:
        if started == 2:
            attempt, generation, step = attempt + 1, 1, max(0, step - 2)
        elif started == 1:
            generation, step = generation + 1, max(0, step - 2)
        step += count
        found.append(
            Manifest(
                job_id="job_1", step=step, attempt=attempt, generation=generation, world_size=1,
                committed_at=0.0, files=(), score=score,
            )
        )  # fmt: skip
    return found


@given(history=histories, keep=st.integers(1, 4), mode=st.sampled_from(["min", "max", None]))
def test_after_every_commit_the_newest_ones_and_the_best_one_are_there(
    history: list[tuple[int, int, float | None]], keep: int, mode: Mode | None
) -> None:
    held: list[Manifest] = []
    ever: list[Manifest] = []
    for one in written(history):
        held.append(one)
        ever.append(one)
        deleted = surplus(held, keep, mode)
        held = [kept for kept in held if kept not in deleted]
        assert held[-keep:] == ever[-keep:], (
            "the newest are there, and what was just committed is the first of them"
        )
        if mode is not None and any(known.score is not None for known in ever):
            assert best_of(ever, mode) in held, "deleting never loses the best one that there ever was"
        assert len(held) <= keep + (mode is not None)
        assert surplus(held, keep, mode) == [], "a second look finds nothing more"


def test_the_smallest_or_the_greatest_is_the_best_and_of_equal_ones_the_youngest() -> None:
    manifests = written([(0, 1, 0.5), (0, 1, None), (0, 1, 0.1), (0, 1, 0.5), (1, 1, 0.1)])
    assert best_of(manifests, "min") == manifests[4]
    assert best_of(manifests, "max") == manifests[3]
    assert best_of([replace(one, score=None) for one in manifests], "max") is None


def test_no_request_can_ask_for_the_newest_one_to_be_deleted() -> None:
    manifests = written([(0, 1, None), (0, 1, None)])
    assert surplus(manifests, 0) == [min(manifests, key=age)]
