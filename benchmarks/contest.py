"""Contestants that are up at the same time and train alternately, so that what else the machine does meets all alike.

Blocks are short and many.  Each round lets everybody train one block, and every other round goes backwards, so that
neither of two neighbours is always the first one.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.ratios import Ratio, ratio
from benchmarks.remora_cluster import RemoraCluster, Run, until
from remora.spec.worker_sizes import WorkerSizes

ROOT = Path(__file__).resolve().parents[1]
#: Seconds until all contestants are up, and that a block may take.
PATIENCE_S = 300.0
#: Seconds in which a peer ends that gets SIGTERM.
GRACE_S = 20.0


class Contest:
    """Who takes part: the same code in the same folder, under Remora or under a launcher of its own."""

    def __init__(
        self, cluster: RemoraCluster, folder: Path, rounds: int, steps: int, running: ExitStack
    ) -> None:
        self._cluster, self._folder, self._running = cluster, folder, running
        self._rounds, self._steps = rounds + 1, steps  # the first round is thrown away
        self._attempts: dict[str, Run] = {}
        self._peers: dict[str, list[subprocess.Popen[bytes]]] = {}
        self._blocks: dict[str, list[list[float]]] = {}
        self.code, self.folder = folder / "code", folder / "blocks"

    @property
    def words(self) -> list[str]:
        """What every script takes as its last arguments: FOLDER BLOCKS STEPS."""
        return [str(self.folder), str(self._rounds), str(self._steps)]

    def remora(self, name: str, command: Sequence[str], **plan: Any) -> None:
        """Two workers under Remora run a command, to which the words are added."""
        # Alternation are taken in a folder outside of the attempt, which a user of its own could not enter.
        two = {"sizes": WorkerSizes(2, 2), "checkpoint_interval_s": None, "isolation": "none"}
        attempt = Run(self._cluster, self.code, [*command, *self.words], **{**two, **plan})
        self._running.callback(attempt.close)
        self._attempts[name] = attempt
        self._blocks[name] = []

    def peer(self, name: str, command: Sequence[str], **variables: str) -> None:
        """A process beside Remora runs a command, to which the words are added; several may have one name.

        It has one thread, as Remora's workers of one CPU have.
        """
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "REMORA_", "PYTHONPATH"))}
        with self._log(name).open("ab") as log:
            process = subprocess.Popen(
                [*command, *self.words],
                cwd=self.code,
                env={**kept, "OMP_NUM_THREADS": "1", **variables},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running.callback(_end, process)
        self._peers.setdefault(name, []).append(process)
        self._blocks[name] = []

    def torchrun(self, name: str, command: Sequence[str]) -> None:
        """Two workers, as PyTorch's manual starts them."""
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        self.peer(name, [*launcher, *command])

    def hold(self) -> None:
        """Let all of them train all their blocks."""
        for number in range(self._rounds):
            for name in order(list(self._blocks), number):
                block = self._train_block(name, number)
                if number > 0:
                    self._blocks[name].append(block)
        (self.folder / "end").touch()

    def ratio(self, ours: str, peer: str) -> Ratio:
        """Step time of one over that of another, once the contest was held."""
        return ratio(self._blocks[ours], self._blocks[peer])

    def _train_block(self, name: str, number: int) -> list[float]:
        """Let one contestant train a block while the others wait."""
        (self.folder / f"{name}-{number}.go").touch()
        result = self.folder / f"{name}-{number}.json"
        until(lambda: result.exists() or self._has_failed(name), PATIENCE_S)
        if not result.exists():
            raise RuntimeError(f"{name} ended before its block {number}: {self._last_words(name)}")
        seconds: list[float] = json.loads(result.read_text())
        return seconds

    def _has_failed(self, name: str) -> bool:
        attempt = self._attempts.get(name)
        if attempt is not None:
            return attempt.end is not None
        return any(process.poll() for process in self._peers[name])

    def _last_words(self, name: str) -> str:
        attempt = self._attempts.get(name)
        return str(attempt.end) if attempt is not None else self._log(name).read_text()[-2000:]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"


@contextmanager
def contest(cluster: RemoraCluster, *scripts: Path, rounds: int, steps: int) -> Iterator[Contest]:
    """A contest of copies of these scripts, over rounds of blocks of steps."""
    with tempfile.TemporaryDirectory(prefix="remora-contest-") as name, ExitStack() as running:
        held = Contest(cluster, Path(name), rounds, steps, running)
        for folder in (held.code, held.folder):
            folder.mkdir()
        for file in (*scripts, ROOT / "benchmarks" / "alternation.py"):
            shutil.copy(file, held.code)
        yield held


def order(names: Sequence[str], number: int) -> list[str]:
    """Who trains after whom in a round: forwards and backwards alternately."""
    return list(names) if number % 2 == 0 else list(reversed(names))


def pack_examples(folder: Path) -> str:
    """Lay `steady_train.py` there, with the examples that it takes models and data from; returns its name."""
    script = ROOT / "benchmarks" / "steady_train.py"
    shutil.copy(script, folder)
    for example in ("elastic", "bytegpt"):
        shutil.copy(ROOT / "examples" / example / "train.py", folder / f"{example}_example.py")
    return script.name


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a peer with all that its launcher has started, which is of the same session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
