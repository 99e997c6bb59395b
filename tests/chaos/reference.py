"""What an undisturbed run of one worker trains, and what comes out of it; and what the workers of a run wrote."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from remora.torch.agreement import CHECK_EVERY, is_rehearsed
from tests.chaos.script import BATCH, SAMPLES, TRAIN

#: Steps that are trained at once, at least.
_AT_LEAST = 600


class Reference:
    """The undisturbed run, as long as anybody wants it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        (folder / "train.py").write_text(TRAIN)
        self._samples: list[list[int]] = []
        self._digests: list[str] = []

    def samples(self, step: int) -> list[int]:
        """Numbers of the samples of a step, sorted."""
        self._reach(step)
        return self._samples[step - 1]

    def digest(self, step: int) -> str:
        """Digest of the weights after a step."""
        self._reach(step)
        return self._digests[step - 1]

    def _reach(self, step: int) -> None:
        if step <= len(self._digests):
            return
        last = max(_AT_LEAST, 2 * step)
        out = self._folder / f"to-{last}"
        out.mkdir()
        variables = {name: value for name, value in os.environ.items() if not name.startswith("REMORA_")}
        command = [sys.executable, "train.py", str(out), "0", str(last)]
        subprocess.run(command, cwd=self._folder, env=variables, check=True, stdout=subprocess.DEVNULL)
        written = [line for _, line in lines_in(out)]
        tried: dict[int, list[int]] = {}
        for line in written:
            if line["kind"] == "tried":
                tried.setdefault(line["step"], []).extend(line["samples"])
        for step, samples in tried.items():
            if is_rehearsed(step - 1, CHECK_EVERY):
                # One micro-batch is computed twice.
                tried[step] = list(dict.fromkeys(samples))
        self._samples = [sorted(tried[number]) for number in range(1, last + 1)]
        self._digests = [line["digest"] for line in written if line["kind"] == "done"]
        assert len(self._digests) == last
        self._check_epochs()

    def _check_epochs(self) -> None:
        per_epoch = -(-SAMPLES // BATCH)
        for first in range(0, len(self._samples) - per_epoch + 1, per_epoch):
            epoch = chain.from_iterable(self._samples[first : first + per_epoch])
            assert sorted(epoch) == list(range(SAMPLES)), "every sample once in every epoch"


def lines_in(out: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """What every process of a run wrote, by the name of the process."""
    for path in sorted(out.glob("*.jsonl")):
        for text in path.read_text().splitlines():
            with contextlib.suppress(ValueError):  # the last line of a process that was killed
                yield path.stem, json.loads(text)
