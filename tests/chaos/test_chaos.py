"""Faults at random steps of a real training: it ends with the samples and the bits of an undisturbed one.

A seed that fails is run again by `make chaos SEED=<seed>`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.faults import Fault, faults_of
from tests.chaos.invariants import check_groups, check_records, check_result
from tests.chaos.reference import Reference
from tests.chaos.sabotage import Job
from tests.chaos.seeds import chosen_seeds
from tests.integration.network.lan import Lan
from tests.integration.trainers.lab import Lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("seed", chosen_seeds())
def test_whatever_goes_wrong_the_result_is_the_same(
    lab: Lab, lan: Lan | None, reference: Reference, tmp_path: Path, seed: int
) -> None:
    faults = faults_of(seed)
    job = Job(lab, lan, tmp_path)
    try:
        sabotage(job, faults)
        job.finish()
        last = check_result(tmp_path, reference)
        check_groups(tmp_path)
        high_water = 0
        for attempt in job.attempts:
            check_records(attempt, high_water)
            high_water = max(high_water, attempt.step)
        check_cost(job, faults)
    except BaseException as error:
        error.add_note("\n".join([*job.reported, f"Run it again: make chaos SEED={seed}"]))
        raise
    finally:
        job.close()
    print(f"seed {seed}: {last} steps; {'; '.join(job.reported)}")


def sabotage(job: Job, faults: list[Fault]) -> None:
    """Let every fault strike, and wait until the job has recovered where the next one does not strike before."""
    is_struck = False
    for fault in faults:
        if not is_struck:
            job.trains(fault.after_steps, workers=2)
            before = job.change
        job.strike(fault)
        is_struck = fault.overlaps
        if not is_struck:
            job.recovers_from(before)
            job.clear(fault)


def check_cost(job: Job, faults: list[Fault]) -> None:
    """What a survivor holds in memory is not done again."""
    kinds = {fault.kind for fault in faults}
    repeated = sum(attempt.progress.get("repeated_steps", 0) for attempt in job.attempts)
    if "blackout" not in kinds and not any(fault.overlaps for fault in faults):
        assert len(job.attempts) == 1
        assert len(job.run.events("worker_group.started")) == 1, "the others go on in place"
        assert repeated <= len(faults), "at most one step per loss"
    if kinds == {"drain"}:
        assert repeated == 0, "a notice costs no step"
