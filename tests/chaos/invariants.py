"""What must be true of every run, whatever struck it: checked over all that was reported and written."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise
from pathlib import Path

from tests.chaos.reference import Reference, lines_in
from tests.integration.trainers.lab import Running


def check_result(out: Path, reference: Reference) -> int:
    """Samples and weights of every step are those of the undisturbed run; returns the number of steps."""
    tried: dict[int, set[int]] = defaultdict(set)
    done: dict[int, set[str]] = defaultdict(set)
    for _, line in lines_in(out):
        if line["kind"] == "tried":
            tried[line["step"]].update(line["samples"])
        else:
            done[line["step"]].add(line["digest"])
    last = max(done)
    assert set(done) == set(range(1, last + 1)), "no step is lost"
    wrong = [step for step in sorted(done) if done[step] != {reference.digest(step)}]
    assert wrong == [], "the weights differ from the reference from here on"
    differs = [step for step in sorted(done) if sorted(tried[step]) != reference.samples(step)]
    assert differs == [], "the samples of these steps are not those of the reference"
    return last


def check_groups(out: Path) -> None:
    """Never two groups at once, no sample twice in a group's step, and every process goes step by step."""
    groups: dict[tuple[int, int], list[tuple[float, int, int]]] = defaultdict(list)
    steps: dict[str, list[int]] = defaultdict(list)
    owners: dict[tuple[int, int, int, int], set[str]] = defaultdict(set)
    for process, line in lines_in(out):
        group = int(process.partition("-")[0]), line["group"]
        # Who is about to try a step has done the one before it.
        done = line["step"] - (line["kind"] == "tried")
        groups[group].append((line["at"], line["step"], done))
        if line["kind"] == "done":
            steps[process].append(line["step"])
        for sample in line.get("samples", []):
            owners[*group, line["step"], sample].add(process)
    assert max(map(len, owners.values())) == 1, "two workers of a group train the same sample"
    for process, own in steps.items():
        assert own == list(range(own[0], own[0] + len(own))), f"{process} goes step by step"
    for old, new in pairwise(sorted(groups)):
        begun_at, first, _ = min(groups[new])
        # Who was frozen may end the step that it was in, which the others do without it, and try the one after it.
        later = [done for at, _, done in groups[old] if at > begun_at and done > first]
        assert later == [], f"group {old} goes on beside group {new}"


def check_records(run: Running, high_water: int) -> None:
    """Steps go forward, except as `repeated_steps` says; groups are numbered; checkpoints only get newer."""
    assert [record.seq for record in run.records] == list(range(1, len(run.records) + 1))
    events = [
        one["data"]
        for one in run.bodies("event")
        if one["kind"] in ("worker_group.started", "worker_group.regrouped")
    ]
    numbers = [one["generation"] for one in events]
    assert numbers == sorted(set(numbers)), "every group has a number of its own"
    repeated, newest = 0, high_water
    for body in run.bodies("metric"):
        repeated += body["step"] <= newest
        newest = max(newest, body["step"])
    reported = run.progress.get("repeated_steps", 0)
    # A new rank 0 reports the newest step once more where the one before it may not have reported it.
    assert reported <= repeated <= reported + len(events), "steps are repeated as they are counted"
    committed = [one["step"] for one in run.bodies("checkpoint") if not one.get("deleted")]
    starts = len(run.events("worker_group.started"))
    backwards = sum(after <= before for before, after in pairwise(committed))
    assert backwards <= starts - 1, "only a group of new processes goes back to a checkpoint"
