"""What the exit code of `remora` says.  Documented in `docs/cli.md`; programs rely on it.  Pure."""

from __future__ import annotations

from enum import IntEnum

from remora import errors
from remora.states import JobState


class ExitCode(IntEnum):
    """Exit codes of every command."""

    OK = 0
    #: The service refused, or something else went wrong.
    ERROR = 1
    #: Wrong options, or a job specification or code folder that is refused.
    USAGE = 2
    #: There is no such job, checkpoint, ...
    NOT_FOUND = 3
    #: The service does not know who you are, or you may not do this.
    FORBIDDEN = 4
    #: No service answers.
    UNREACHABLE = 5
    #: `wait --timeout` gave up.
    TIMEOUT = 6
    #: The job failed.
    JOB_FAILED = 10
    #: The job was cancelled.
    JOB_CANCELLED = 12
    #: Ctrl-C; the job goes on.
    DETACHED = 130


HELP = (
    "Exit codes: 0 done; 1 refused or another error; 2 wrong options or specification; 3 not found;"
    " 4 not allowed; 5 no service answers; 6 wait gave up; 10 the job failed; 12 the job was cancelled;"
    " 130 detached by Ctrl-C, the job goes on."
)


def code_of_error(error: errors.RemoraError) -> ExitCode:
    """The exit code for an error."""
    refused = (
        errors.SpecError,
        errors.BundleError,
        errors.ConfigurationError,
        errors.Invalid,
        errors.TooLarge,
    )
    if isinstance(error, refused):
        return ExitCode.USAGE
    if isinstance(error, errors.NotFound):
        return ExitCode.NOT_FOUND
    if isinstance(error, errors.Unauthenticated | errors.Forbidden):
        return ExitCode.FORBIDDEN
    if isinstance(error, errors.ConnectionFailed):
        return ExitCode.UNREACHABLE
    if isinstance(error, errors.WaitTimeout):
        return ExitCode.TIMEOUT
    return ExitCode.ERROR


def code_of_state(state: JobState) -> ExitCode:
    """The exit code of a command that waited for a job."""
    by_state = {JobState.FAILED: ExitCode.JOB_FAILED, JobState.CANCELLED: ExitCode.JOB_CANCELLED}
    return by_state.get(state, ExitCode.OK)
