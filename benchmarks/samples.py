"""Which samples a run trained, from what its workers wrote down (pure but for the reading)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from pathlib import Path

#: Step, epoch, numbers of samples.
Line = tuple[int, int, tuple[int, ...]]


def read_samples(folder: Path) -> list[Line]:
    """What all workers wrote; a line that was cut by the end of a worker is left out."""
    lines: list[Line] = []
    for file in sorted(folder.glob("*.samples")):
        for line in file.read_text().splitlines(keepends=True):
            words = line.split()
            if line.endswith("\n") and len(words) == 3:
                lines.append((int(words[0]), int(words[1]), tuple(int(one) for one in words[2].split(","))))
    return lines


def lost_and_doubled(lines: Iterable[Line], complete: int, size: int) -> tuple[int, int]:
    """Samples of the first `complete` epochs that were never trained, and how many were trained again.

    `size` is the number of samples in the dataset.
    """
    seen = Counter((epoch, sample) for _, epoch, samples in lines if epoch < complete for sample in samples)
    return complete * size - len(seen), sum(seen.values()) - len(seen)
