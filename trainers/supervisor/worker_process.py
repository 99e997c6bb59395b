"""What the driver calls in the process of a Ray Train worker, in which one supervisor runs.

`prepare` and `instruct` are called by the driver; `supervise` is what Ray Train runs as its training function.  Where a
worker group begins again in place, another supervisor follows the one that has ended, in this very process.
"""

from __future__ import annotations

import dataclasses
import threading

from remora.process_log import about, write_worker_log
from remora.script import channel
from trainers.secret_values import values_of
from trainers.supervisor.assignment import Assignment, ChildFailed, PlannedStop
from trainers.supervisor.supervisor import Supervisor

#: Seconds until the driver has said what follows a command that got SIGKILL, and has given the next assignment.
#: A driver that takes longer hears that this worker has ended, and starts another one.
_VERDICT_S, _NEXT_S = 2.0, 120.0

#: What is to be run and is not yet.
_assignment: Assignment | None = None
_running: Supervisor | None = None
#: Instructions that came before the training function started.
_early: list[channel.Message] = []
#: The newest stop said whether another assignment follows; None: there was none since the supervisor began.
_begins_again: bool | None = None
#: No supervisor follows in this process any more.
_has_ended = False
_changed = threading.Condition()


class WorkerEnded(Exception):
    """No supervisor begins in the process of this worker any more."""


def prepare(assignment: Assignment, *secrets: bytes) -> None:
    """Take an assignment, and the chunks of the values of its secrets; called before the supervisor begins.

    Raises WorkerEnded where it came too late.
    """
    global _assignment
    with _changed:
        if _has_ended:
            raise WorkerEnded("the worker has ended, and takes no other assignment")
        _assignment = dataclasses.replace(assignment, secrets=values_of(secrets))
        _changed.notify_all()


def instruct(message: channel.Message) -> bool:
    """Take an instruction of the driver for the child, now or as soon as it runs.

    False: another supervisor was to follow, and this worker has ended.
    """
    global _begins_again
    with _changed:
        running, again = _running, message.get("again") is True
        if message["type"] == "stop":
            _begins_again = again
            _changed.notify_all()
        # What ends one supervisor is not for the next one.
        if running is None and not again:
            _early.append(message)
        is_late = again and _has_ended
    if running is not None:
        running.instruct(message)
    return not is_late


def supervise() -> None:
    """Run the prepared assignment to its end, and those that follow; what Ray Train calls as the training function.

    Raises ChildFailed or PlannedStop, which shows Ray Train that this worker has ended.
    """
    while True:
        running = _begin()
        try:
            running.run()
        except (ChildFailed, PlannedStop):
            if not _another_follows(running.was_killed):
                raise
        else:
            _end()
            return


def _begin() -> Supervisor:
    global _assignment, _running, _begins_again, _has_ended
    with _changed:
        assignment, _assignment, _begins_again, _has_ended = _assignment, None, None, False
        if assignment is None:
            raise RuntimeError("this worker was started without an assignment")
        running = Supervisor(assignment)
        identity = assignment.identity
        subject = about(
            job=identity.job_id, attempt=identity.attempt_id, traceparent=assignment.plan.traceparent
        )
        write_worker_log("worker", subject, running.redacted)
        for message in _early:
            running.instruct(message)
        _early.clear()
        _running = running
    return running


def _another_follows(was_killed: bool) -> bool:
    """Wait for the next assignment, where the driver has said that there is one; False: this worker ends."""
    global _running
    with _changed:
        _running = None
        if was_killed:
            _changed.wait_for(lambda: _begins_again is not None, _VERDICT_S)
        if _begins_again:
            _changed.wait_for(lambda: _assignment is not None or not _begins_again, _NEXT_S)
        follows = bool(_begins_again) and _assignment is not None
        if not follows:
            _end()
        return follows


def _end() -> None:
    """From now on the driver gets the answer that no supervisor follows here."""
    global _has_ended
    with _changed:
        _has_ended = True
