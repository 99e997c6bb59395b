"""Scripts as users write them, standard library and `remora.training` only; each is the content of one file."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.processes import until

#: Does numbered steps, as many as the file `allowed` permits, and writes down each of them outside of Remora too.  No
#: rank begins a step before all have done the one before, as where gradients are averaged: ranks agree on a step to
#: save, which one that had done all that it may would never reach.
STEPS = """
import os, pathlib, sys, time
from remora import training

outside, steps = pathlib.Path(sys.argv[1]), int(sys.argv[2])
world = training.world()
rank = world.rank
saved = training.resume_from()
done = int((saved / f"rank-{rank}").read_text()) if saved else 0
print(f"rank {rank} begins after step {done}")

def allowed():
    return min(int((outside / "allowed").read_text() or 0), *(1 + done_by(each) for each in range(world.world_size)))

def done_by(each):
    diary = outside / f"rank-{each}"
    return int(diary.read_text().split()[-1]) if diary.exists() and diary.stat().st_size else 0

with (outside / f"rank-{rank}").open("a", buffering=1) as diary:
    for step in range(done + 1, steps + 1):
        while step > allowed():
            time.sleep(0.01)
        time.sleep(0.03)
        diary.write(f"{step}\\n")
        print(f"rank {rank} did step {step}")
        training.report(step, {"square": step * step}, total_steps=steps)
        if training.should_checkpoint() or step == steps:
            with training.checkpoint(step) as folder:
                (folder / f"rank-{rank}").write_text(str(step))
"""


class Steps:
    """The outside of the script above: how far it may go, and how far it went, whether or not the service knows it."""

    def __init__(self, folder: Path, steps: int, ranks: int = 2) -> None:
        self.code = folder / "code"
        self.code.mkdir()
        (self.code / "train.py").write_text(STEPS)
        self._outside = folder / "outside"
        self._outside.mkdir()
        self._ranks = ranks
        self.steps = steps
        self.allow(0)

    @property
    def spec(self) -> dict[str, object]:
        """The job."""
        return {
            "code": str(self.code),
            "command": ["python", "train.py", str(self._outside), str(self.steps)],
            "workers": self._ranks,
            "resources": {"cpus": 1},
            "checkpoint": {"interval": "250ms"},
        }

    def allow(self, step: int) -> None:
        """Let every rank go on up to this step."""
        draft = self._outside / "draft"
        draft.write_text(str(step))
        draft.rename(self._outside / "allowed")

    def allow_all(self) -> None:
        """Let it train to its end."""
        self.allow(self.steps)

    def done(self, rank: int) -> list[int]:
        """The steps that a rank did, in its order."""
        diary = self._outside / f"rank-{rank}"
        return [int(line) for line in diary.read_text().split()] if diary.exists() else []

    def until_done(self, step: int) -> None:
        """Wait until every rank did this step."""
        until(
            lambda: all(step in self.done(rank) for rank in range(self._ranks)),
            f"every rank did step {step}",
        )

    def log_of(self, rank: int) -> list[str]:
        """What a rank prints when nothing disturbs it."""
        steps = [f"rank {rank} did step {step}" for step in range(1, self.steps + 1)]
        return [f"rank {rank} begins after step 0", *steps]


#: Leaves a daemon in a session of its own behind, once that one has printed its pid.
DAEMON = """
import os, pathlib, subprocess, sys, time
pid = pathlib.Path(sys.argv[1])
daemon = (
    "import os, pathlib, signal, sys; p = pathlib.Path(sys.argv[1]);"
    "d = p.with_suffix('.new'); d.write_text(str(os.getpid())); d.rename(p); signal.pause()"
)
subprocess.Popen([sys.executable, "-c", daemon, str(pid)], start_new_session=True)
while not pid.exists():
    time.sleep(0.01)
print("the daemon runs")
"""

#: Waits for ever, and does not want to be asked to end.
ENDLESS = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("it waits")
while True:
    signal.pause()
"""

#: Prints what logs fear: a line of 3 MB, bytes that are no UTF-8, and a last line without an end.
LOUD = """
import sys
sys.stdout.buffer.write(b"x" * 3_000_000 + b"\\ncaf\\xe9 \\x00 \\xff\\nno end")
"""
