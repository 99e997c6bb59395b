"""What a job has run for its environment runs as a user of that build, and leaves nothing that a job's user owns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remora import cgroups
from remora.machine_isolation import offered
from tests.wheels import wheel
from trainers.confined_folders import remove_tree
from trainers.environments.build import EnvironmentFailed, environment
from trainers.environments.request import EnvironmentRequest

pytestmark = pytest.mark.skipif(offered().uids is None, reason=offered().why_not)

#: A build backend that does nothing but say who runs it.
BACKEND = """
import os
raise SystemExit(f"built by {os.getuid() != NODE and os.getuid() > 1000}")
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REMORA_WORK_DIR", str(tmp_path / "work"))
    monkeypatch.setenv("SITE_CREDENTIALS", "canary")
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def test_commands_for_an_environment_run_as_a_user_of_its_build(code: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("canary")
    victim = tmp_path / "victim"
    victim.write_text("unchanged")
    setup = f"""
test $(id -u) -gt 1000
! cat {secret}
! env | grep canary
touch made-in-a-copy
rm -rf $VIRTUAL_ENV/remora.json; ln -s {victim} $VIRTUAL_ENV/remora.json
echo print > $VIRTUAL_ENV/own.py; ln $VIRTUAL_ENV/own.py $VIRTUAL_ENV/second.py
(setsid sleep 600 >/dev/null 2>&1 &)
"""
    with environment(EnvironmentRequest(setup=setup), code, print, tmp_path / "envs") as built:
        root = built.python.parent.parent
        for path in (root, *root.rglob("*")):
            status = path.lstat()
            assert status.st_uid == os.geteuid(), f"{path} belongs to a job"
            assert path.is_symlink() or status.st_mode & 0o004, f"{path} cannot be read by jobs"
            assert path.is_symlink() or not status.st_mode & 0o022, f"{path} can be written to"
    assert victim.read_text() == "unchanged"
    assert not (code / "made-in-a-copy").exists()
    assert list((tmp_path / "work").iterdir()) == []


def test_a_package_that_replaces_the_interpreter_shows_no_folder_to_the_commands_after_it(
    code: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    (secret / "bin").mkdir(parents=True)
    (secret / "bin/python").write_text("canary")
    secret.chmod(0o755)
    (code / "own").mkdir()
    (code / "own/pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "who"\nbackend-path = ["."]\n'
        '[project]\nname = "own"\nversion = "1.0"\n'
    )
    (code / "own/who.py").write_text(
        "import pathlib, shutil\n"
        "def build_wheel(folder, *_, **__):\n"
        f"    python = next(pathlib.Path({str(tmp_path / 'envs')!r}).glob('*/bin/python'))\n"
        f"    python.unlink(); python.symlink_to({str(secret / 'bin/python')!r})\n"
        f"    return pathlib.Path(shutil.copy('../{wheel(code, 'own')}', folder)).name\n"
    )
    asked = EnvironmentRequest(pip=("./own",), setup=f"! cat {secret}/bin/python; echo done")
    said: list[str] = []
    with environment(asked, code, said.append, tmp_path / "envs") as built:
        assert built.python.readlink() == secret / "bin/python"
    assert not [line for line in said if "canary" in line]


#: Starts processes until it is refused one, and says in which cgroup.
FORKS = """
python - <<'END'
import os, signal
print("cgroup", open("/proc/self/cgroup").read().split()[-1])
started = []
try:
    for _ in range(200):
        pid = os.fork()
        if pid == 0:
            signal.pause()
        started.append(pid)
except BlockingIOError:
    print("refused after", len(started))
for pid in started:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
END
"""


@pytest.mark.parametrize("has_cgroups", [True, False])
def test_a_build_has_a_limit_of_processes_and_leaves_none(
    has_cgroups: bool, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if has_cgroups and cgroups.walls().folder is None:
        pytest.skip(cgroups.walls().sentence)
    if not has_cgroups:
        monkeypatch.setattr(cgroups, "walls", lambda: cgroups.Walls(folder=None, why_not="of the test"))
    said: list[str] = []
    asked = EnvironmentRequest(setup=FORKS)
    with environment(asked, code, said.append, tmp_path / "envs", most_processes=60) as built:
        (refused,) = [line for line in said if line.startswith("refused after")]
        assert 20 < int(refused.split()[-1]) < 60
        (cgroup,) = [line for line in said if line.startswith("cgroup")]
        assert (f"remora-build-{built.digest[:16]}" in cgroup) is has_cgroups
    folder = cgroups.walls().folder
    assert folder is None or list(folder.glob(f"remora-build-{built.digest[:16]}*")) == []


LOCK = """
version = 1
requires-python = ">=3.9"
[[package]]
name = "mine"
version = "1.0"
source = { virtual = "." }
dependencies = [{ name = "own" }]
[[package]]
name = "own"
version = "1.0"
source = { editable = "own" }
"""
PROJECT = '[project]\nname = "mine"\nversion = "1.0"\nrequires-python = ">=3.9"\ndependencies = ["own"]\n'
SOURCES = '[tool.uv.sources]\nown = { "p\\u0061th" = "own", "\\u0065ditable" = true }\n'


@pytest.mark.parametrize(
    ("asked", "files"),
    [
        (EnvironmentRequest(pip=("./own",)), {}),
        (EnvironmentRequest(requirements="requirements.txt"), {"requirements.txt": "-e ./own\n"}),
        (EnvironmentRequest(requirements="uv.lock"), {"uv.lock": LOCK, "pyproject.toml": PROJECT + SOURCES}),
        (EnvironmentRequest(requirements="pyproject.toml"), {"pyproject.toml": PROJECT + SOURCES}),
    ],
    ids=["path", "editable", "lock", "sources"],
)
def test_a_package_of_the_code_is_built_by_such_a_user_too(
    asked: EnvironmentRequest, files: dict[str, str], code: Path, tmp_path: Path
) -> None:
    for name, text in files.items():
        (code / name).write_text(text)
    (code / "own").mkdir()
    (code / "own/pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "who"\nbackend-path = ["."]\n'
        '[project]\nname = "own"\nversion = "1.0"\n'
    )
    canary = tmp_path / "canary"
    # Every build writes it that may: only the node's user.
    written = f"import contextlib\nwith contextlib.suppress(OSError): open({str(canary)!r}, 'w').close()\n"
    (code / "own/who.py").write_text(written + BACKEND.replace("NODE", str(os.geteuid())))
    building = environment(asked, code, print, tmp_path / "envs")
    with pytest.raises(EnvironmentFailed, match="built by True"), building:
        pytest.fail("it was built")
    assert not canary.exists()


DEEP = """
python - <<'END'
import os
os.chdir(os.environ["VIRTUAL_ENV"])
for _ in range(2000):
    os.mkdir("d")
    os.chdir("d")
END
"""


def test_a_setup_that_makes_folders_without_end_fails_with_a_sentence(code: Path, tmp_path: Path) -> None:
    asked = EnvironmentRequest(setup=DEEP)
    with (
        pytest.raises(EnvironmentFailed, match="it has folders that lie in more than 256 others"),
        environment(asked, code, lambda _: None, tmp_path / "envs"),
    ):
        pass
    remove_tree(tmp_path / "envs")
