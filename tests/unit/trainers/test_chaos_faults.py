"""The faults of a seed are always the same, and twenty seeds have all of them."""

from __future__ import annotations

from tests.chaos.faults import WEIGHTS, faults_of
from tests.chaos.seeds import ALL_SEEDS, seed_of


def test_a_seed_means_the_same_faults_for_ever() -> None:
    assert faults_of(7) == faults_of(7)
    assert faults_of(7) != faults_of(8)


def test_all_seeds_together_have_every_kind_of_fault() -> None:
    faults = [fault for seed in ALL_SEEDS for fault in faults_of(seed)]
    assert {fault.kind for fault in faults} == set(WEIGHTS)
    assert {fault.overlaps for fault in faults} == {True, False}
    assert {fault.thaws for fault in faults if fault.kind == "freeze"} == {True, False}


def test_a_list_of_changes_that_grows_comes_to_all_seeds() -> None:
    assert {seed_of(b"- One more change.\n" * changes) for changes in range(200)} == set(ALL_SEEDS)
