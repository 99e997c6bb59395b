"""A script that is forked from the warm interpreter behaves as one that is started: the same words, the same end."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trainers.processes.child import Child
from trainers.processes.fork_server import PADDING_VARIABLE, SINGLE_THREADED
from trainers.processes.fork_server_client import ForkServer, server_environment

pytestmark = pytest.mark.slow

#: Scripts that print what they find; both ways must print the same, to the letter.
SAME = {
    "where it is": """
import os, sys
print(sys.argv, sys.orig_argv[1:], sys.path[0], __file__, __name__, __spec__, __package__, __doc__, __cached__)
print(type(__loader__).__name__, sorted(globals()), __builtins__, os.getcwd(), sys.flags, sys.executable)
import __main__; print(__main__.__dict__ is globals())
""",
    "environment": """
import os, subprocess
import torch._dynamo  # sets a variable
print(sorted((k, v) for k, v in os.environ.items() if k not in ("REMORA_CHILD", "REMORA_CHANNEL_FD")))
print(subprocess.run(["sh", "-c", "echo $RANK $REMORA_PADDING"], stdout=subprocess.PIPE).stdout)
print([one for one in open("/proc/self/environ").read().split(chr(0)) if one.startswith(("RANK", "REMORA_PADDING"))])
""",
    "streams": """
import os, sys
for stream in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
    print(stream.name, stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.mode,
          stream.newlines, stream.isatty(), type(stream.buffer).__name__)
print(sys.stdin.read() == "", len(os.listdir("/proc/self/fd")), os.ttyname(0) if os.isatty(0) else "no terminal")
print("äö", file=sys.stderr)
os.system("echo from the shell")
""",
    "signals": """
import signal, threading, os
print([(one.name, signal.getsignal(one)) for one in sorted(signal.valid_signals()) if isinstance(one, signal.Signals)
       and one not in (signal.SIGINT,)])
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.pthread_sigmask(0, []))
print(os.getsid(0) == os.getpid(), threading.active_count(), threading.current_thread() is threading.main_thread())
""",
    "an end with a sentence": "import sys; sys.exit('that is all')",
    "an end with a number": "raise SystemExit(7)",
    "an exception": """
def inner(): raise ValueError("nö")
try: inner()
except ValueError as error: raise RuntimeError("outer") from error
""",
    "an interrupt": "raise KeyboardInterrupt",
    "a syntax error": "def f(:\n  pass",
    "a hook of its own": "import sys; sys.excepthook = lambda kind, _, trace: print(kind, trace.tb_lineno)\n1/0",
    "last words": """
import atexit, threading
atexit.register(print, "at exit")
done = threading.Event()
def late(): done.wait(0.1); print("thread ended")
threading.Thread(target=late).start()
print("last line", end="")
""",
    "a crash": "import os; os.kill(os.getpid(), 11)",
    "modules of our names": """
import trainers, service, command_shim
print(trainers.WHO, service.WHO, command_shim.WHO)
""",
    "multiprocessing": """
import multiprocessing
def work(x): return x * x
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(work, [1, 2, 3]))
""",
    "pickle": """
import pickle
class Here: pass
print(type(pickle.loads(pickle.dumps(Here()))) is Here)
""",
    "torch": """
import torch
print(torch.get_num_threads(), torch.cuda.is_initialized())
a = torch.arange(250000.).reshape(500, 500).requires_grad_(); (a @ a).sum().backward(); print(a.grad.sum())
""",
    "data loader": """
import torch
from torch.utils.data import DataLoader
if __name__ == "__main__":
    print(torch.cat(list(DataLoader(torch.arange(20), batch_size=5, num_workers=2))))
""",
    "gloo": """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp
def meet(rank, file):
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    x = torch.ones(3) * (rank + 1); dist.all_reduce(x)
    if rank == 0: print(x)
    dist.destroy_process_group()
if __name__ == "__main__":
    other = mp.get_context("spawn").Process(target=meet, args=(1, os.path.abspath("rendezvous")))
    other.start(); meet(0, os.path.abspath("rendezvous")); other.join()
""",
}
#: Scripts that end while a thread of gloo waits for Python's lock, which they keep for longer than it waits.
ENDS = {
    "of the interpreter": """
import sys, time
import torch, torch.distributed as dist
def keep_the_lock(seconds, clock=time.perf_counter):
    until = clock() + seconds
    while clock() < until: pass
class Last:
    def __del__(self, wait=keep_the_lock): wait(1.0)
last = Last()
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
sys.setswitchinterval(0.4)
for _ in range(100): dist.all_reduce(torch.ones(1), async_op=True)
keep_the_lock(0.1)
""",
    "of DistributedDataParallel": """
import sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
def keep_the_lock(seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until: pass
def main():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    sys.setswitchinterval(1000)
    for _ in range(100): dist.all_reduce(torch.ones(1), async_op=True)
    keep_the_lock(0.3)
    dist.destroy_process_group()
main()
""",
}
#: What keeps a script from being forked: how it is called, what it finds, what its events say.
FRESH: dict[str, tuple[list[str], dict[str, str], str]] = {
    "a hash seed": (["train.py"], {"PYTHONHASHSEED": "1"}, ""),
    "a library path": (["train.py"], {"LD_LIBRARY_PATH": "/nowhere"}, ""),
    "a setting that torch reads once": (["train.py"], {"TORCH_CPP_LOG_LEVEL": "INFO"}, ""),
    "an option of the interpreter": (["-O", "train.py"], {}, ""),
    "a module of its own with the name of a loaded one": (["train.py"], {}, "statistics.py"),
    "no script at all": (["gone.py"], {}, ""),
}


@dataclass
class Outcome:
    """How one run of a script ended, and what it printed."""

    is_warm: bool = False
    status: dict[str, object] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)
    lines: dict[str, list[str]] = field(default_factory=lambda: {"stdout": [], "stderr": []})


class Stage:
    """One folder of code in which the same command runs in both ways."""

    def __init__(self, folder: Path, fork_server: ForkServer) -> None:
        self.folder = folder
        self._fork_server = fork_server

    def run(self, arguments: list[str], variables: Mapping[str, str], *, warm: bool) -> Outcome:
        outcome = Outcome()
        ours = (PADDING_VARIABLE, *SINGLE_THREADED)
        kept = {name: value for name, value in server_environment(os.environ).items() if name not in ours}
        child = Child(
            [sys.executable, *arguments],
            folder=self.folder,
            environment={**kept, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "2", "RANK": "5", **variables},
            line_bytes=10_000,
            grace_s=1.0,
            on_lines=lambda stream, text: outcome.lines[stream].extend(text.split("\n")),
            on_message=lambda message: outcome.messages.append(message["type"]),
            fork_server=self._fork_server if warm else None,
        )
        outcome.is_warm = child.is_warm
        outcome.status = child.wait()
        return outcome

    def both(self, arguments: list[str], **variables: str) -> Outcome:
        """Run it both ways, and compare."""
        started = self.run(arguments, variables, warm=False)
        forked = self.run(arguments, variables, warm=True)
        assert (started.is_warm, forked.is_warm) == (False, True)
        assert forked.lines == started.lines
        assert ended(forked) == ended(started)
        return forked


def ended(outcome: Outcome) -> dict[str, object]:
    """How the script itself ended; servers of multiprocessing end a moment later, and chance says who sees them."""
    return {name: value for name, value in outcome.status.items() if name != "outlived"}


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> ForkServer:
    return ForkServer(
        tmp_path_factory.mktemp("server"), os.getpid(), ["torch", "torch._dynamo", "remora.torch"]
    )


@pytest.fixture(scope="module")
def fork_server_of_torch(tmp_path_factory: pytest.TempPathFactory) -> ForkServer:
    return ForkServer(tmp_path_factory.mktemp("server"), os.getpid(), ["torch"])


@pytest.fixture
def stage(tmp_path: Path, fork_server: ForkServer) -> Stage:
    for name in ("trainers", "service", "command_shim"):
        (tmp_path / f"{name}.py").write_text(f"WHO = 'the {name} of the user'")
    return Stage(tmp_path, fork_server)


@pytest.mark.parametrize("what", SAME)
def test_a_script_cannot_tell_the_difference(stage: Stage, what: str) -> None:
    (stage.folder / "train.py").write_text(SAME[what])
    outcome = stage.both(["train.py", "--epochs", "5"])
    assert (
        outcome.lines["stdout"]
        or outcome.lines["stderr"]
        or "signal" in outcome.status
        or outcome.status["exit_code"]
    )


def test_a_module_is_run_as_a_module(stage: Stage) -> None:
    (stage.folder / "package").mkdir()
    (stage.folder / "package" / "__init__.py").touch()
    (stage.folder / "package" / "tool.py").write_text(
        "import sys\nfrom . import __name__ as ours\nprint(ours, sys.argv, sys.path[0], __spec__.name, __file__)\n1/0"
    )
    outcome = stage.both(["-m", "package.tool", "x"])
    assert outcome.lines["stdout"][0].startswith("package ")


def test_a_buffered_script_is_buffered(stage: Stage) -> None:
    (stage.folder / "train.py").write_text(SAME["streams"])
    stage.both(["train.py"], PYTHONUNBUFFERED="")
    stage.both(["-u", "train.py"], PYTHONUNBUFFERED="")


@pytest.mark.parametrize("what", FRESH)
def test_what_a_fork_could_not_give_is_started(stage: Stage, what: str) -> None:
    arguments, variables, file = FRESH[what]
    (stage.folder / "train.py").write_text(
        "import statistics; print(hasattr(statistics, 'mean'), hash('x') != 0)"
    )
    if file:
        (stage.folder / file).touch()
    outcome = stage.run(arguments, variables, warm=True)
    assert not outcome.is_warm
    assert outcome.status == {"exit_code": 2 if arguments == ["gone.py"] else 0}


@pytest.mark.parametrize("which", ENDS)
def test_threads_of_pytorch_do_not_turn_the_end_of_a_script_into_a_failure(
    tmp_path: Path, fork_server_of_torch: ForkServer, which: str
) -> None:
    (tmp_path / "train.py").write_text(ENDS[which])
    outcome = Stage(tmp_path, fork_server_of_torch).run(["train.py"], {}, warm=True)
    assert outcome.is_warm
    assert (outcome.status, outcome.lines["stderr"]) == ({"exit_code": 0}, [])


def test_what_is_drawn_by_chance_is_drawn_again(stage: Stage) -> None:
    draws = (
        "random.random()", "numpy.random.rand()", "torch.rand(9)", "torch.initial_seed()", "uuid.uuid4()",
        "bytes(multiprocessing.current_process().authkey)",
    )  # fmt: skip
    code = "import random, numpy, torch, uuid, multiprocessing\n" + "\n".join(
        f"print({draw})" for draw in draws
    )
    (stage.folder / "train.py").write_text(code)
    first, second = (stage.run(["train.py"], {}, warm=True).lines["stdout"] for _ in range(2))
    assert len(first) == len(draws)
    assert not set(first) & set(second)


def test_the_number_of_threads_is_what_the_environment_says(stage: Stage) -> None:
    (stage.folder / "train.py").write_text("import torch; print(torch.get_num_threads())")
    assert stage.both(["train.py"], OMP_NUM_THREADS="1").lines["stdout"] == ["1"]
    stage.both(["train.py"], OMP_NUM_THREADS="3")


def test_the_script_talks_to_its_supervisor(stage: Stage) -> None:
    (stage.folder / "train.py").write_text("from remora import training; training.report(1, {'loss': 0.5})")
    assert stage.both(["train.py"]).messages == ["hello", "report"]
