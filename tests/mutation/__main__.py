"""Try a sample of mutants, and print which of them no test has seen: `python -m tests.mutation --seed 1 --sample 100`.

Within a seed the sample is the same as long as the sources are.  It is a mirror and not a gate: some mutants change
nothing that anybody could see.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from tests.architecture.repository import ROOT, sources
from tests.mutation.copies import Copy, Outcome, TestsFail
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.targets import TARGETS, Target, sources_of

#: Seconds that the tests of a target may take without any fault on a busy machine.
_BASELINE_S = 3600.0
#: A fault may make tests slower by this factor, and by these seconds, before they count as hanging.
_SLOWER, _SLOWER_S = 3.0, 30.0


def drawn(seed: int, count: int, texts: dict[str, str], names: Sequence[str]) -> list[tuple[Target, Mutant]]:
    """That number of all mutants of these targets, each as likely as any other one."""
    paths = sources_of(texts)
    everything = [
        (target, mutant)
        for target in TARGETS
        if target.name in names
        for path in paths[target.name]
        for mutant in mutants_of(path, texts[path])
    ]
    random.Random(seed).shuffle(everything)
    usable = (one for one in everything if one[1].compiles(texts[one[1].path]))
    return _in_order(itertools.islice(usable, count))


def _in_order(chosen: Iterable[tuple[Target, Mutant]]) -> list[tuple[Target, Mutant]]:
    """Each once; those of one target follow each other, as its tests are collected once."""
    return sorted(set(chosen), key=lambda one: (TARGETS.index(one[0]), one[1]))


Outcomes = dict[tuple[Target, Mutant], Outcome]


def tried(
    chosen: Sequence[tuple[Target, Mutant]], folder: Path, at_once: int
) -> tuple[Outcomes, dict[str, str]]:
    """What became of each, and by the name of their target why others were not tried."""
    everything = [Copy.make(ROOT, folder / str(number)) for number in range(at_once)]
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in everything:
        free.put(copy)
    mutants: dict[Target, list[Mutant]] = {}
    for target, mutant in chosen:
        mutants.setdefault(target, []).append(mutant)
    outcomes: Outcomes = {}
    not_tried: dict[str, str] = {}

    def try_all_of(target: Target) -> None:
        with _taken(free) as copy:
            if why := try_target(copy, target, mutants[target], outcomes):
                not_tried[target.name] = why

    with ThreadPoolExecutor(at_once) as threads:
        try:
            # Those with most mutants first, so that none is left alone at the end.
            list(threads.map(try_all_of, sorted(mutants, key=lambda one: -len(mutants[one]))))
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            raise
        finally:
            for copy in everything:
                copy.stop()
    return outcomes, not_tried


def try_target(copy: Copy, target: Target, mutants: Sequence[Mutant], outcomes: Outcomes) -> str:
    """Add what becomes of these mutants to `outcomes`; why the rest was not tried, empty where all were."""
    try:
        measured = copy.measure(target.tests, mutants, _BASELINE_S)
        _say(f"the tests of {target.name} take {measured.took_s:.0f} s")
        for mutant in mutants:
            begun = time.monotonic()
            limit_s = _SLOWER * measured.took_s + _SLOWER_S
            outcome = copy.try_out(mutant, target.tests, measured, limit_s)
            outcomes[target, mutant] = outcome
            _say(f"{outcome} in {time.monotonic() - begun:.1f} s: {mutant}")
    except TestsFail as error:
        # What was found with other targets has taken an hour: it is not given up.
        _say(f"{target.name}: {error}")
        return str(error)
    return ""


def _say(text: str) -> None:
    print(f"# {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _taken(free: SimpleQueue[Copy]) -> Iterator[Copy]:
    copy = free.get()
    try:
        yield copy
    finally:
        free.put(copy)


def summary(chosen: Sequence[tuple[Target, Mutant]], outcomes: Sequence[Outcome]) -> list[str]:
    """The score of each target and of all, and the survivors."""
    count = Counter(target.name for target, _ in chosen)
    killed = Counter(
        target.name for (target, _), outcome in zip(chosen, outcomes, strict=True) if outcome == "killed"
    )
    rows = [(name, killed[name], total) for name, total in count.items()]
    rows.append(("all", killed.total(), count.total()))
    lines = [
        f"{name:<16}{seen:>4} of {total:>4} seen{100 * seen / total:>7.0f} %" for name, seen, total in rows
    ]
    left = [
        str(mutant) for (_, mutant), outcome in zip(chosen, outcomes, strict=True) if outcome == "survived"
    ]
    return [*lines, *(["", "seen by no test:", *left] if left else [])]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 1 when tests fail without any fault."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--seed", type=int, nargs="+", default=[1], help="one sample for each")
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--at-once", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--targets", nargs="+", choices=[one.name for one in TARGETS], default=[one.name for one in TARGETS]
    )
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    texts = dict(sources("remora", "service", "cluster", "trainers"))
    samples = {seed: drawn(seed, options.sample, texts, options.targets) for seed in options.seed}
    chosen = _in_order(one for sample in samples.values() for one in sample)
    with tempfile.TemporaryDirectory(prefix="remora-mutation-") as folder:
        outcomes, not_tried = tried(chosen, Path(folder), options.at_once)
    for seed, sample in samples.items():
        done = [one for one in sample if one in outcomes]
        print(f"seed {seed}:", *summary(done, [outcomes[one] for one in done]), "", sep="\n")
    for name, why in not_tried.items():
        print(f"{name}: not all mutants were tried: {why}", file=sys.stderr)
    return int(bool(not_tried))


if __name__ == "__main__":
    sys.exit(main())
