"""A command with an environment is forked from the node's interpreter where no script could see the difference."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy
import pytest

from remora.isolation import Isolation
from tests.kept_apart import decide_or_skip
from tests.wheels import wheel
from trainers.environments.build import BuiltEnvironment, environment, environment_folders
from trainers.environments.request import EnvironmentRequest
from trainers.environments.worker_python import WorkerPython, make_worker_python
from trainers.isolation.confined import ConfinedJob, confined_job
from trainers.isolation.mounts import Shown
from trainers.processes import fork_server as fork_server_module
from trainers.processes.child import Child
from trainers.processes.fork_server import PADDING_VARIABLE, SINGLE_THREADED
from trainers.processes.fork_server_client import ForkServer, server_environment
from trainers.processes.fork_server_layer import unfit_layer
from trainers.processes.fork_server_rules import WarmState

#: Prints all that distinguishes one interpreter from another.
WHAT_IT_SEES = """
import os, sys
print(sys.path)
print(sys.prefix, sys.exec_prefix, sys.base_prefix, sys.executable, sys.flags, sys.orig_argv[1:])
import importlib.metadata, site, sysconfig
print([one if isinstance(one, type) else type(one) for one in sys.meta_path])
found = importlib.metadata.distributions()
print(sorted((one.metadata["Name"], one.version, str(one.locate_file(""))) for one in found))
print(importlib.metadata.version("numpy"), importlib.metadata.version("tiny"))
print(sysconfig.get_paths(), site.ENABLE_USER_SITE, site.PREFIXES)
print(os.environ["VIRTUAL_ENV"], os.environ["PATH"], os.environ.get("OF_PTH"), os.getuid())
import tiny, numpy, json
print(tiny.VERSION, tiny.__file__, numpy.__version__, numpy.ones(3).sum())
import subprocess
print(subprocess.run(["python", "-c", "import sys; print(sys.path)"], capture_output=True).stdout)
"""


@dataclass
class Layered:
    """A job with an environment, whose command runs in both ways."""

    folder: Path
    fork_server: ForkServer
    built: BuiltEnvironment
    python: WorkerPython
    job: ConfinedJob | None
    lines: list[str] = field(default_factory=list)

    @property
    def packages(self) -> Path:
        """The folder of packages of the environment."""
        (found,) = self.built.python.parent.parent.glob("lib/python3.*/site-packages")
        return found

    def bring(self, name: str, version: str, files: dict[str, str]) -> None:
        """Put a distribution into the environment, as an installer does."""
        information = self.packages / f"{name}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        for path, text in files.items():
            (self.packages / path).parent.mkdir(exist_ok=True)
            (self.packages / path).write_text(text)

    def run(self, code: str, *, forked: bool) -> bool:
        """Run a script; returns whether it was forked.  `lines` are those that it prints."""
        self.lines.clear()
        (self.folder / "train.py").write_text(code)
        hidden = (PADDING_VARIABLE, *SINGLE_THREADED)
        kept = {name: text for name, text in server_environment(os.environ).items() if name not in hidden}
        variables = {
            "PATH": ":".join([*self.python.path_folders, "/usr/bin:/bin"]),
            "VIRTUAL_ENV": str(self.python.python.parent.parent),
            "OMP_NUM_THREADS": "1",
        }
        confinement = None
        if self.job is not None:
            own = [self.folder, self.python.python.parent.parent]
            self.job.own(*own)
            shown = [Shown(source=path, target=path, is_read_only=False) for path in own]
            shown += [Shown(source=path, target=path) for path in environment_folders(self.built)]
            confinement = self.job.on_node(shown, None)
        child = Child(
            ["python", "train.py"],
            folder=self.folder,
            environment={**kept, **variables},
            line_bytes=100_000,
            grace_s=1.0,
            on_lines=lambda _, text: self.lines.extend(text.split("\n")),
            on_message=lambda _: None,
            fork_server=self.fork_server if forked else None,
            python=self.python,
            confinement=confinement,
        )
        assert child.wait() == {"exit_code": 0}, self.lines
        return child.is_warm


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> ForkServer:
    return ForkServer(tmp_path_factory.mktemp("server"), os.getpid(), ["json", "numpy"])


@contextlib.contextmanager
def layered(
    folder: Path, fork_server: ForkServer, isolation: Isolation, asked: EnvironmentRequest
) -> Iterator[Layered]:
    decide_or_skip(isolation)
    for name in ("code", "temporary"):
        (folder / name).mkdir()
    with (
        environment(asked, folder, lambda _: None, folder / "envs", isolation="none") as built,
        confined_job(isolation, folder.name, folder, folder / "temporary") as job,
    ):
        yield Layered(
            folder / "code", fork_server, built, make_worker_python(folder / "own", built.python), job
        )


@pytest.fixture
def plain(tmp_path: Path, fork_server: ForkServer) -> Iterator[Layered]:
    """Without walls, which have no part in whether a command is forked."""
    asked = EnvironmentRequest(pip=(f"./{wheel(tmp_path)}",))
    with layered(tmp_path, fork_server, "none", asked) as found:
        yield found


@pytest.mark.parametrize("isolation", ["none", "users", "namespaces"])
def test_a_script_sees_the_same_as_one_that_is_started(
    tmp_path: Path, fork_server: ForkServer, isolation: Isolation
) -> None:
    asked = EnvironmentRequest(pip=(f"./{wheel(tmp_path)}",))
    with layered(tmp_path, fork_server, isolation, asked) as job:
        job.bring("beside", "2.0", {"beside/__init__.py": "", "elsewhere/found.py": ""})
        own = "import os; os.environ['OF_PTH'] = f'as {os.getuid()}'\nelsewhere\n"
        (job.packages / "beside.pth").write_text(own)
        assert not job.run(WHAT_IT_SEES, forked=False)
        started = list(job.lines)
        assert job.run(WHAT_IT_SEES, forked=True)
        assert job.lines == started
        # What the environment has for the start of an interpreter runs as the job's user.
        uid = os.getuid() if job.job is None else job.job.uid
        assert f"as {uid} {uid}" in started[-3], started


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"numpy/__init__.py": "__version__ = '0.1'"}, "numpy in the environment"),
        ({"numpy.py": "__version__ = '0.1'"}, "numpy.py in the environment"),
        ({"remora/__init__.py": ""}, "remora in the environment"),
        ({"sitecustomize.py": ""}, "sitecustomize.py in the environment"),
        ({"hidden.pth": "below\n", "below/numpy.py": "__version__ = '0.1'"}, "numpy.py in the environment"),
        ({"remora-layers.pth": ""}, "does not inherit"),
    ],
)
def test_an_environment_with_another_module_than_the_loaded_one_is_started(
    plain: Layered, caplog: pytest.LogCaptureFixture, files: dict[str, str], why: str
) -> None:
    plain.bring("other", "0.1", files)
    with caplog.at_level(logging.DEBUG, logger="trainers.processes.fork_server_client"):
        assert not plain.run("import tiny; print(tiny.VERSION)", forked=True)
    assert plain.lines == ["1.0"]
    assert why in caplog.text
    assert all(record.levelno == logging.DEBUG for record in caplog.records)


def test_a_package_of_the_same_files_as_the_nodes_is_no_other_one(plain: Layered) -> None:
    node = Path(numpy.__file__).parents[1]
    information = f"numpy-{numpy.__version__}.dist-info"
    record = (node / information / "RECORD").read_text()
    plain.bring("numpy", numpy.__version__, {f"{information}/RECORD": record, "numpy/version.py": ""})
    assert plain.run("import tiny, numpy; print(numpy.ones(2).sum())", forked=True)
    assert plain.lines == ["2.0"]
    line = next(one for one in record.splitlines() if one.startswith("numpy/__init__.py,"))
    (plain.packages / information / "RECORD").write_text(record.replace(line, line[:-1] + "9"))
    (plain.packages / "numpy" / "__init__.py").write_text("__version__ = 'changed'")
    assert not plain.run("import numpy; print(numpy.__version__)", forked=True)
    assert plain.lines == ["changed"]


def test_a_module_that_the_server_has_looked_for_is_not_brought_later(plain: Layered) -> None:
    plain.bring("late", "1.0", {"late_one.py": ""})
    code = "import importlib.util; print(importlib.util.find_spec('late_one') is not None)"
    assert plain.run(code, forked=True)
    assert plain.lines == ["True"]
    # `numpy` looks for this one when it is imported.
    plain.bring("threads", "1.0", {"pickle5.py": "", "org/__init__.py": ""})
    assert not plain.run(code, forked=True)


def test_a_package_that_pytorch_imports_with_itself_is_started(plain: Layered) -> None:
    plain.bring(
        "device", "1.0", {"device-1.0.dist-info/entry_points.txt": "[torch.backends]\na = device:load\n"}
    )
    assert not plain.run("pass", forked=True)


def test_what_an_environment_holds_in_place_of_files_is_not_read(tmp_path: Path) -> None:
    warm = WarmState(loaded=frozenset(), environment={}, added={})
    assert unfit_layer(str(tmp_path), warm) is None
    os.mkfifo(tmp_path / "waits.pth")
    assert "waits.pth is no file" in str(unfit_layer(str(tmp_path), warm))
    (tmp_path / "waits.pth").unlink()
    (tmp_path / "huge.pth").symlink_to("/dev/zero")
    assert "cannot be read" in str(unfit_layer(str(tmp_path), warm))
    (tmp_path / "huge.pth").unlink()
    for name in ("a.pth", "b.pth"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(40 << 20)
    assert "b.pth is no file, or too big" in str(unfit_layer(str(tmp_path), warm))


def test_pth_files_are_read_up_to_a_number_of_lines_and_folders(tmp_path: Path) -> None:
    warm = WarmState(loaded=frozenset(), environment={}, added={})
    pth = tmp_path / "many.pth"
    pth.write_text(".\n" * 400)
    assert unfit_layer(str(tmp_path), warm) is None
    pth.write_text(".\n" * 250_000)
    assert "more than 500 lines" in str(unfit_layer(str(tmp_path), warm))
    for number in range(40):
        (tmp_path / f"below{number}").mkdir()
    pth.write_text("".join(f"below{number}\n" for number in range(40)))
    assert "too many folders" in str(unfit_layer(str(tmp_path), warm))
    for number in range(600):
        (tmp_path / f"{number}.pth").touch()
    assert "more than 500 lines" in str(unfit_layer(str(tmp_path), warm))


def test_a_process_that_looks_at_an_environment_for_too_long_ends() -> None:
    child = os.fork()
    if child == 0:
        with fork_server_module._ends_after(60.0):
            pass
        with fork_server_module._ends_after(0.05):
            signal.pause()
        os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGALRM


def test_an_environment_that_does_not_inherit_is_started(tmp_path: Path, fork_server: ForkServer) -> None:
    asked = EnvironmentRequest(pip=(f"./{wheel(tmp_path)}",), inherit=False)
    with layered(tmp_path, fork_server, "none", asked) as job:
        assert not job.run("import tiny; print(tiny.VERSION)", forked=True)
        assert job.lines == ["1.0"]
