"""A queue of short jobs whose commands leave a mark outside of the service, and what must be true of the marks."""

from __future__ import annotations

import itertools
import threading
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from remora import Client
from remora.states import JobState
from remora.views import Job
from tests.e2e.processes import PATIENCE_S, until

#: Writes one line when it begins and one when it ends, in a file of this job, attempt, worker group and rank.
MARKED = """
import os, sys, time
from remora import training

names = ("REMORA_JOB_ID", "REMORA_ATTEMPT", "REMORA_GENERATION", "RANK")
path = os.path.join(sys.argv[1], ".".join(os.environ[name] for name in names))

def mark(word):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, f"{word} {os.getpid()}\\n".encode())
    os.close(file)

mark("began")
for step in range(int(sys.argv[2])):
    # Without checkpoints every attempt begins again; these numbers say that it gets on all the same.
    training.report(1000 * int(os.environ["REMORA_ATTEMPT"]) + step)
    time.sleep(0.1)
mark("ended")
"""


@dataclass(frozen=True)
class Mark:
    """One start of the command: of one rank of one worker group of one attempt."""

    job_id: str
    attempt: int
    generation: int
    rank: int
    #: What it wrote: `began`, and `ended` when it came so far.
    words: tuple[str, ...]


class Queue:
    """Submits jobs from a thread of its own, whatever becomes of the service meanwhile, and remembers the answers."""

    def __init__(self, url: str, folder: Path) -> None:
        self._url = url
        self._marks = folder / "marks"
        self._marks.mkdir()
        self._code = folder / "code"
        self._code.mkdir()
        (self._code / "train.py").write_text(MARKED)
        self._threads: list[threading.Thread] = []
        self._errors: list[Exception] = []
        #: Jobs that the service has accepted, with their number of workers.
        self.acknowledged: dict[str, int] = {}

    def submit(self, jobs: tuple[tuple[int, int], ...]) -> None:
        """Submit jobs of that number of workers and steps; returns at once."""
        thread = threading.Thread(target=self._submit, args=(jobs,), daemon=True)
        thread.start()
        self._threads.append(thread)

    def _submit(self, jobs: tuple[tuple[int, int], ...]) -> None:
        try:
            with Client(self._url, retry_s=PATIENCE_S) as client:
                for workers, steps in jobs:
                    command = ["python", "train.py", str(self._marks), str(steps)]
                    resources = {"cpus": 1}
                    job = client.submit(
                        {
                            "code": str(self._code),
                            "command": command,
                            "workers": workers,
                            "resources": resources,
                        }
                    )
                    self.acknowledged[job.id] = workers
        except Exception as error:
            self._errors.append(error)

    def wait(self) -> None:
        """Until every submission was answered, and every job has ended."""
        for thread in self._threads:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), "a submission was not answered"
        assert self._errors == []
        with Client(self._url, retry_s=PATIENCE_S) as client:
            try:
                looks = itertools.count(1)
                while waiting := [one for one in self.acknowledged if not client.job(one).terminal]:
                    # However slow the machine is: one after the other they end.  Most looks ask for the oldest alone:
                    # many requests would take the processor from the jobs.
                    until(
                        lambda: any(
                            client.job(one).terminal
                            for one in (waiting if next(looks) % 100 == 0 else waiting[:1])
                        ),
                        f"one of {len(waiting)} jobs ends",
                    )
            except AssertionError as error:
                jobs = [client.job(one) for one in self.acknowledged]
                for job in jobs:
                    if not job.terminal:
                        attempts = [str(one) for one in client.attempts(job.id)]
                        error.add_note(f"{job.id} {job.state}: {job.message}; {attempts}")
                raise

    def marks(self) -> list[Mark]:
        """What the commands left."""
        found = []
        for path in sorted(self._marks.iterdir()):
            job_id, attempt, generation, rank = path.name.split(".")
            words = tuple(line.split()[0] for line in path.read_text().splitlines())
            found.append(Mark(job_id, int(attempt), int(generation), int(rank), words))
        return found

    def check(self) -> None:
        """Every acknowledged job has ended once, and well, and no command has run twice."""
        with Client(self._url, retry_s=PATIENCE_S) as client:
            assert {job.id for job in client.jobs()} == set(self.acknowledged), (
                "what was accepted is there, once"
            )
            marks = defaultdict(list)
            for mark in self.marks():
                marks[mark.job_id].append(mark)
            assert set(marks) == set(self.acknowledged), "whatever ran was accepted"
            for job_id in self.acknowledged:
                self._check_job(client, client.job(job_id), marks[job_id])

    def _check_job(self, client: Client, job: Job, marks: list[Mark]) -> None:
        reported = (
            f"{job.id}: {job.reason}: {job.message}; {[one.end_reason for one in client.attempts(job.id)]}"
        )
        assert job.state is JobState.SUCCEEDED, reported
        kinds = [event.kind for event in client.events(job.id)]
        ends = [kind for kind in kinds if kind in ("job.succeeded", "job.failed", "job.cancelled")]
        assert ends == ["job.succeeded"], reported
        for mark in marks:
            assert mark.words in (("began",), ("began", "ended")), f"ran twice: {mark}; {reported}"
        last = max(mark.attempt for mark in marks)
        assert last == job.attempt, f"it ran after it had succeeded; {reported}"
        generation = max(mark.generation for mark in marks if mark.attempt == last)
        final = [mark for mark in marks if (mark.attempt, mark.generation) == (last, generation)]
        assert [mark.rank for mark in final] == list(range(self.acknowledged[job.id])), reported
        assert all("ended" in mark.words for mark in final), reported
