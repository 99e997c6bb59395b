"""Does on this machine what a node would do with a job: its code, its environment, and its command for some steps.

`remora dev` and `remora env` run it.  The specification comes as JSON on standard input.  One worker runs, without a
cluster and without a service; nothing is kept but the environment, which the next run finds.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from remora.code.bundle import pack
from remora.code.checks import check_code
from remora.errors import BundleError, SpecError, SpecProblem
from remora.free_ports import free_port
from remora.spec.quantities import format_size
from remora.spec.spec import JobSpec
from remora.terminal_text import neutral
from service.loops.attempt_plans import attempt_plan
from service.queue.rows import AttemptRow, JobRow
from service.settings import Settings
from service.storage_locations import UnknownStore
from service.store.ids import new_id
from trainers.containers.images import node_image
from trainers.environments.build import (
    MOST_KEPT,
    BuiltEnvironment,
    EnvironmentFailed,
    EnvironmentImpossible,
    environment,
    kept_environments,
    prune,
)
from trainers.node_folders import unpack_once, work_root
from trainers.plan import AttemptPlan
from trainers.storage import Storage, StorageError
from trainers.supervisor.assignment import Assignment, ChildFailed, PlannedStop
from trainers.supervisor.supervisor import Supervisor
from trainers.worker_identity import WorkerIdentity


class LocalDriver:
    """Takes what a supervisor sends to its driver: prints it, and ends the command after some steps."""

    def __init__(self, steps: int, say: Callable[[str], None]) -> None:
        self.generation = 1
        #: The newest step that the command reported; None: it has reported none.
        self.step: int | None = None
        self.end: dict[str, Any] = {}
        self._steps = steps
        self._reports = 0
        self._say = say
        self._began = time.monotonic()
        self.instruct: Callable[[dict[str, Any]], None] = lambda _: None

    def put(self, message: dict[str, Any]) -> None:
        """Take a message."""
        kind = message["type"]
        if kind == "prepared":
            self.instruct({"type": "begin"})
        elif kind == "preparing":
            self._say(f"{message['what']}: {message['state']}")
        elif kind == "report":
            self._report(message)
        elif kind in ("exit", "trouble"):
            self.end = message

    def _report(self, message: dict[str, Any]) -> None:
        self.step = int(message["step"])
        self._reports += 1
        if self._reports > self._steps:
            return
        metrics = (message.get("metrics") or {}).items()
        values = "".join(f", {neutral(str(name))} {value:.4g}" for name, value in metrics)
        self._say(f"step {self.step} after {time.monotonic() - self._began:.1f} s{values}")
        if self._reports == self._steps:
            # Not here: this thread reads what the command sends, and its end is among that.
            stop = {"type": "stop", "at_once": True}
            threading.Thread(target=self.instruct, args=(stop,), daemon=True).start()

    def put_lines(self, stream: str, text: str) -> None:
        """Print lines of the command, or ours."""
        prefix = "remora: " if stream == "remora" else ""
        for line in text.split("\n"):
            print(f"{prefix}{neutral(line)}", flush=True)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self) -> None:
        """Nothing waits."""


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says; 1 where a node would fail."""
    arguments = _arguments(words)
    # As after Ctrl-C: the command and all that it started end.
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        match arguments.action:
            case "list":
                return _list()
            case "prune":
                return _prune(arguments.keep)
            case "build":
                return _with_code(_build)
            case _:
                return _with_code(lambda plan, _: _run(plan, arguments.steps))
    except SpecError as error:
        for problem in error.problems:
            print(f"remora: {neutral(str(problem))}", file=sys.stderr)
        return 2
    except (
        BundleError,
        UnknownStore,
        EnvironmentFailed,
        EnvironmentImpossible,
        StorageError,
        OSError,
    ) as error:
        print(f"remora: {neutral(str(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _with_code(act: Callable[[AttemptPlan, Path], int]) -> int:
    """Pack the code as a submission does, and act in a folder of its own."""
    spec = JobSpec.from_mapping(json.load(sys.stdin))
    with tempfile.TemporaryDirectory(prefix="remora-dev-") as name:
        home = Path(name)
        settings = Settings(home=home)
        if spec.code_folder is not None:
            bundle = home / "bundle.zip"
            packed = pack(spec.code_folder, bundle)
            with bundle.open("rb") as opened:
                check_code(spec, opened)
            Storage(settings.storage).write_file(
                f"bundles/{packed.digest.removeprefix('sha256:')}.zip", bundle
            )
            print(
                f"code: {counted(packed.files, 'file')}, {format_size(packed.size_bytes)} packed", flush=True
            )
            spec = spec.with_code(packed.digest)
        return act(_plan(spec, settings), home)


def _plan(spec: JobSpec, settings: Settings) -> AttemptPlan:
    """What a driver would get for the first attempt.  Raises UnknownStore."""
    now = time.time()
    job = JobRow(
        id=new_id("job", now),
        name=spec.name,
        project=spec.project,
        priority=spec.priority,
        spec=spec.to_mapping(),
        min_workers=1,
        max_workers=1,
        worker_resources=spec.ray_resources(),
        retry_limit=0,
        backoff_s=0.0,
        run_time_s=None,
        wait_time_s=None,
        created_at=now,
    )
    attempt = AttemptRow(id=new_id("att", now), job_id=job.id, attempt=1, created_at=now)
    # A fork server would outlive this run.
    return attempt_plan(job, attempt, settings.model_copy(update={"warm_modules": ""}))


def _build(plan: AttemptPlan, home: Path) -> int:
    if plan.image is not None:
        image = node_image(plan.image, lambda text: print(f"remora: {text}", flush=True))
        print(f"image {image.id[:12]}: {format_size(image.size_bytes)}")
        return 0
    if plan.environment is None:
        print("the job has no environment of its own: it runs in that of the nodes")
        return 0
    with ExitStack() as in_use:
        _prepare(plan, home, in_use)
    return 0


def _prepare(plan: AttemptPlan, home: Path, in_use: ExitStack) -> BuiltEnvironment:
    assert plan.environment is not None
    code = unpack_once(Storage(plan.storage_url), plan.bundle, home)
    built = in_use.enter_context(
        environment(
            plan.environment, code, lambda text: print(f"remora: {text}", flush=True), bundle=plan.bundle
        )
    )
    how = f"built in {built.build_s:.1f} s" if built.build_s else "there already"
    print(f"environment {built.digest[:12]}: {counted(built.packages, 'package')}, {how}", flush=True)
    return built


def _run(plan: AttemptPlan, steps: int) -> int:
    driver = LocalDriver(steps, lambda text: print(f"remora: {text}", flush=True))
    supervisor = Supervisor(
        Assignment(
            plan=plan,
            identity=_identity(plan),
            driver=None,
            resume=None,
            slot=0,
            secrets=_secrets(plan, os.environ),
        ),
        driver,
    )
    driver.instruct = supervisor.instruct
    try:
        supervisor.run()
    except (ChildFailed, PlannedStop):
        pass
    except KeyboardInterrupt:
        supervisor.instruct({"type": "stop", "at_once": True})
        raise
    return _verdict(driver.end, driver.step)


def _secrets(plan: AttemptPlan, variables: Mapping[str, str]) -> dict[str, str]:
    """Values of the job's secrets from variables of this shell, as no service is asked.  Raises SpecError."""
    problems = [
        SpecProblem(
            "environment.secrets", f"no service is asked here; give {name} as a variable of this shell"
        )
        for name in plan.secrets
        if name not in variables
    ]
    if problems:
        raise SpecError(problems)
    return {name: variables[name] for name in plan.secrets}


def _identity(plan: AttemptPlan) -> WorkerIdentity:
    return WorkerIdentity(
        job_id=plan.job_id,
        attempt_id=plan.attempt_id,
        attempt=1,
        generation=1,
        rank=0,
        world_size=1,
        local_rank=0,
        local_world_size=1,
        node_rank=0,
        num_nodes=1,
        master_addr="127.0.0.1",
        master_port=free_port("127.0.0.1"),
    )


def _verdict(end: dict[str, Any], step: int | None) -> int:
    """Say what the end means; 0 where a node would have gone on, or the command has succeeded."""
    if end.get("stopped"):
        print(f"remora: a node would go on from here: step {step} was reported, and the command was ended")
        return 0
    if end.get("exit_code") == 0:
        reported = "" if step is not None else ", and it reported no step (remora.training.report)"
        print(f"remora: the command returned 0{reported}")
        return 0
    why = end.get("start_failed") or end.get("environment_failed") or end.get("message")
    if why is None:
        code = end.get("exit_code")
        why = (
            f"the command ended with exit code {code}" if code is not None else f"signal {end.get('signal')}"
        )
    print(f"remora: a node would fail: {neutral(str(why))}", file=sys.stderr)
    return 1


def _list() -> int:
    found = kept_environments(work_root() / "environments")
    for one in found:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.used_at))
        print(
            f"{one.digest[:12]}  {counted(one.packages, 'package'):>12}  {format_size(one.size_bytes):>10}  used {used}"
        )
    if not found:
        print("This machine has no environments of jobs.")
    return 0


def _prune(keep: int) -> int:
    root = work_root() / "environments"
    removed = prune(root, keep) if root.is_dir() else []
    verb = "was" if len(removed) == 1 else "were"
    print(f"{counted(len(removed), 'environment')} {verb} removed; those in use stay")
    return 0


def counted(number: int, noun: str) -> str:
    """`1 package`, `2 packages`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m service.local_run", description=__doc__)
    parser.add_argument("action", choices=["run", "build", "list", "prune"])
    parser.add_argument(
        "--steps", type=int, default=1, help="reported steps after which the command is ended"
    )
    parser.add_argument("--keep", type=int, default=MOST_KEPT, help="environments that stay")
    return parser.parse_args(words)


if __name__ == "__main__":
    sys.exit(main())
