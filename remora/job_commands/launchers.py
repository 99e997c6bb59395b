"""Commands that start a launcher of processes: the script in them is what every worker runs.  Pure.

torchrun, deepspeed, `accelerate launch`, mpirun and horovodrun start processes on nodes, which is what Remora does.
Inside a worker one more of them would start a training of its own, so `unwrap` takes the script and its arguments out.
Where a shell or a program like `env` starts one, `remora.job_commands.nested_launchers` does that when it is started.
Options that say how many processes there are must agree with the job's `workers`; those that say where processes meet,
or how they are watched, mean nothing here and are named; those that Remora cannot honour are refused.

Sources: the `--help` of torchrun, deepspeed, `accelerate launch` and horovodrun, and mpirun(1) of Open MPI 4.1.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from remora.job_commands.launcher_options import OPTIONS, Option
from remora.job_commands.started_commands import started_by

#: Module that `python -m` starts -> the launcher that it is.
_MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torch.distributed.launch",
    "deepspeed.launcher.runner": "deepspeed",
    "accelerate.commands.launch": "accelerate launch",
}
_PROGRAMS = {
    "torchrun": "torchrun",
    "deepspeed": "deepspeed",
    "mpirun": "mpirun",
    "mpiexec": "mpirun",
    "orterun": "mpirun",
    "horovodrun": "horovodrun",
}
#: Launchers whose command line names a program, not a script of Python.
_OF_PROGRAMS = ("mpirun", "horovodrun")
#: Launchers that need a backend of their own; the others do with every backend.
_BACKENDS = {"mpirun": "mpi", "horovodrun": "mpi"}
#: One of them stands in every command that starts a launcher.
_NAMES = (*_PROGRAMS, *_MODULES, "accelerate")
#: Programs that a command finds as ours when it starts them itself: see `remora.job_commands.nested_launchers`.
STOOD_IN_FOR = ("torchrun", "deepspeed", "accelerate")
_PYTHON = re.compile(r"python[0-9.]*")


@dataclass(frozen=True, kw_only=True)
class Unwrapped:
    """What a launcher's command line asks of every worker."""

    #: The launcher's name; None when the command starts none.
    launcher: str | None = None
    #: Argument list of a worker, but for `rank_flag`.
    command: list[str]
    #: Flag that the launcher puts before the script's arguments, with the local rank; it stands at `rank_place`.
    rank_flag: str | None = None
    rank_place: int = 0
    #: What options of the launcher become.
    variables: Mapping[str, str] = field(default_factory=dict)
    #: Options that mean nothing here, as they were written.
    ignored: tuple[str, ...] = ()
    #: Fewest and most processes that it asks for, and the options that say so; None when it leaves that open.
    processes: tuple[int, int] | None = None
    counted_by: str = ""

    def for_worker(self, local_rank: int) -> list[str]:
        """The argument list of one worker."""
        if self.rank_flag is None:
            return list(self.command)
        flag = f"{self.rank_flag}={local_rank}"
        return [*self.command[: self.rank_place], flag, *self.command[self.rank_place :]]


def unwrap(command: Sequence[str]) -> Unwrapped:
    """The script and its arguments.  Raises ValueError with one sentence for what cannot be taken out."""
    words = list(command)
    for starter, started in _started(words):
        refuse_started(starter, started)
    found = _launcher_of(words)
    if found is None:
        return Unwrapped(command=words)
    launcher, python, rest = found
    read = _Reading(launcher)
    script = read.options(rest)
    if not script:
        raise ValueError(f"{launcher} is given no script; write the script that every worker runs")
    if launcher in _OF_PROGRAMS or read.is_program:
        line = script
    else:
        line = [*python, "-m", *script] if read.is_module else [*python, *script]
    if read.seen & {"no-local-rank", "use-env"} or launcher not in ("deepspeed", "torch.distributed.launch"):
        flag = None
    else:
        flag = "--local_rank" if launcher == "deepspeed" else "--local-rank"
    return Unwrapped(
        launcher=launcher,
        command=line,
        rank_flag=flag,
        rank_place=len(line) - len(script) + 1,
        variables=read.variables,
        ignored=tuple(read.ignored),
        processes=read.processes(),
        counted_by=" ".join(read.counted),
    )


def check_launcher(command: Sequence[str], backend: str, fewest: int, most: int) -> None:
    """Raise ValueError when a launcher in the command contradicts the job's backend or number of workers."""
    unwrapped = unwrap(command)
    launcher = unwrapped.launcher
    wanted = _BACKENDS.get(launcher or "")
    if wanted is not None and backend != wanted:
        raise ValueError(f"it starts {launcher}, and backend is {backend}; write backend: {wanted}")
    check_count(unwrapped, fewest, most)
    for _, started in _started(unwrapped.command):
        if is_launch(started):
            check_count(unwrap(started), fewest, most)


def check_count(unwrapped: Unwrapped, fewest: int, most: int) -> None:
    """Raise ValueError when a launcher asks for other numbers of processes than the job has workers."""
    if unwrapped.processes is not None and unwrapped.processes != (fewest, most):
        asked, given = _span(*unwrapped.processes), _span(fewest, most)
        raise ValueError(
            f"{unwrapped.launcher} asks for {asked} processes ({unwrapped.counted_by}) and workers is {given};"
            f" leave the options out, and write how many processes you want as workers"
        )


def may_start_a_launcher(command: Sequence[str]) -> bool:
    """True for what is not Python's own: a script for a shell, or a program that starts others."""
    return not _PYTHON.fullmatch(PurePath(command[0]).name)


def is_launch(command: Sequence[str]) -> bool:
    """True when these words start processes by a launcher that a command may start itself."""
    is_ours = bool(command) and command[0] in STOOD_IN_FOR
    return is_ours and (command[0] != "accelerate" or list(command[1:2]) == ["launch"])


def _span(fewest: int, most: int) -> str:
    return str(most) if fewest == most else f"{fewest} to {most}"


def _started(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """What the words start through a shell or through a program like `env`, when a launcher may be among it."""
    if any(name in word for word in words for name in _NAMES):
        yield from started_by(list(words))


def refuse_started(starter: str, command: Sequence[str]) -> None:
    """Raise ValueError for a launcher that `starter` would start in every worker, and for which none stands in."""
    found = _launcher_of(list(command)) if command else None
    if found is None or is_launch(command):
        return
    launcher = found[0]
    if launcher in _OF_PROGRAMS:
        instead = f"make the whole command one of {launcher}, with backend: {_BACKENDS[launcher]}"
    else:
        name = "torchrun" if launcher.startswith("torch") else launcher
        instead = f"write `{name}` there, without a folder and without python before it"
    raise ValueError(f"{starter} would start {launcher} in every worker; {instead}")


def _launcher_of(words: list[str]) -> tuple[str, list[str], list[str]] | None:
    """The launcher, how it starts Python, and what follows its name."""
    program = PurePath(words[0])
    beside = [str(program.with_name("python"))] if program.parent != PurePath() else ["python"]
    if program.name in _PROGRAMS:
        return _PROGRAMS[program.name], beside, words[1:]
    if program.name == "accelerate" and words[1:2] == ["launch"]:
        return "accelerate launch", beside, words[2:]
    if _PYTHON.fullmatch(program.name):
        place = 1
        while place < len(words) and words[place].startswith("-") and words[place] != "-m":
            place += 2 if words[place] in ("-W", "-X") else 1
        if words[place : place + 1] == ["-m"] and (
            name := _MODULES.get("".join(words[place + 1 : place + 2]))
        ):
            return name, words[:place], words[place + 2 :]
    return None


class _Reading:
    """A launcher's options, read from the left until the script."""

    def __init__(self, launcher: str) -> None:
        self._launcher = launcher
        self._options = OPTIONS[launcher]
        self._counts: dict[str, str] = {}
        self.seen: set[str] = set()
        self.counted: list[str] = []
        self.ignored: list[str] = []
        self.variables: dict[str, str] = {}
        self.is_module = self.is_program = False

    def options(self, words: list[str]) -> list[str]:
        """Read them; returns what follows, the script first."""
        place = 0
        while place < len(words) and words[place].startswith("-"):
            if words[place] == "--":
                return words[place + 1 :]
            written, equals, value = words[place].partition("=")
            name = written.lstrip("-").replace("_", "-")
            option = self._options.get(name)
            if option is None:
                raise ValueError(
                    f"{self._launcher}'s option {written} is not known here; write the script's own command without it"
                )
            values = [value] if equals else words[place + 1 : place + 1 + option.values]
            if len(values) < option.values:
                raise ValueError(f"{self._launcher}'s option {written} has no value")
            place += 1 if equals else 1 + option.values
            self._take(option, name, written, values)
        if ":" in words[place:] and self._launcher == "mpirun":
            raise ValueError("mpirun's ':' starts several programs; one command runs on every worker")
        return words[place:]

    def _take(self, option: Option, name: str, written: str, values: list[str]) -> None:
        self.seen.add(name)
        if option.refusal is not None:
            raise ValueError(f"{self._launcher}'s option {written} cannot be honoured; {option.refusal}")
        if option.counts is not None:
            self._counts[option.counts] = values[0]
            self.counted.append(" ".join([written, *values]))
        elif option.variable is not None:
            name, value = option.variable(values)
            self.variables[name] = value
        elif name in ("m", "module"):
            self.is_module = True
        elif name == "no-python":
            self.is_program = True
        else:
            self.ignored.append(" ".join([written, *values]))

    def processes(self) -> tuple[int, int] | None:
        """Fewest and most processes that the options ask for."""
        counts = {name: _range(value) for name, value in self._counts.items()}
        if any(span is None for span in counts.values()):
            return None
        if (total := counts.get("all")) is not None:
            return total
        each, nodes = counts.get("each"), counts.get("nodes")
        if each is None and (nodes is None or self._launcher != "torchrun"):
            return None
        each, nodes = each or (1, 1), nodes or (1, 1)
        return each[0] * nodes[0], each[1] * nodes[1]


def _range(text: str) -> tuple[int, int] | None:
    """`4` and `1:4`; None for what depends on the machine (`auto`, `gpu`)."""
    parts = text.split(":")
    if not all(part.isdecimal() for part in parts) or len(parts) > 2:
        return None
    return int(parts[0]), int(parts[-1])


def describe(unwrapped: Unwrapped) -> str:
    """One sentence for people: what is started instead of the launcher."""
    text = f"{unwrapped.launcher} is not started: every worker runs `{shlex.join(unwrapped.command)[:300]}`."
    if unwrapped.ignored:
        text += f" These options mean nothing here: {', '.join(unwrapped.ignored)[:300]}."
    return text
