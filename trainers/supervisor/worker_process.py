"""What the driver calls in the process of a Ray Train worker, in which one supervisor runs.

`prepare` and `instruct` are called by the driver; `supervise` is what Ray Train runs as its training function.
"""

from __future__ import annotations

import dataclasses
import threading

from remora.process_log import about, write_worker_log
from remora.script import channel
from trainers.secret_values import values_of
from trainers.supervisor.assignment import Assignment
from trainers.supervisor.supervisor import Supervisor

_assignment: Assignment | None = None
_running: Supervisor | None = None
#: Instructions that came before the training function started.
_early: list[channel.Message] = []
_starting = threading.Lock()


def prepare(assignment: Assignment, *secrets: bytes) -> None:
    """Take an assignment, and the pieces of the values of its secrets; called before the training function starts."""
    global _assignment
    _assignment = dataclasses.replace(assignment, secrets=values_of(secrets))


def instruct(message: channel.Message) -> None:
    """Take an instruction of the driver for the child, now or as soon as it runs."""
    with _starting:
        running = _running
        if running is None:
            _early.append(message)
    if running is not None:
        running.instruct(message)


def supervise() -> None:
    """Run the prepared assignment to its end; what Ray Train calls as the training function.

    Raises ChildFailed or PlannedStop, which tells Ray Train that this worker has ended.
    """
    global _running
    if _assignment is None:
        raise RuntimeError("this worker was started without an assignment")
    running = Supervisor(_assignment)
    identity = _assignment.identity
    subject = about(
        job=identity.job_id, attempt=identity.attempt_id, traceparent=_assignment.plan.traceparent
    )
    write_worker_log("worker", subject, running.redacted)
    with _starting:
        for message in _early:
            running.instruct(message)
        _running = running
    running.run()
