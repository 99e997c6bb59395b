"""A job's Python environment is built once for each description, on the packages of the node, and kept while used."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import psutil
import pytest

from remora.isolation import Isolation
from tests.wheels import wheel
from trainers.environments import build
from trainers.environments.build import EnvironmentFailed, environment, node_packages, prune
from trainers.environments.commands import TimeLimit
from trainers.environments.named_packages import only_names
from trainers.environments.request import (
    EnvironmentImpossible,
    EnvironmentRequest,
    NodePackages,
    digest_of,
    inherits,
)

NODE = NodePackages(python="3.11", torch="2.12.0")
ROOT = Path(__file__).parents[3]
OWN = ".".join(map(str, sys.version_info[:2]))


def said_by(python: Path, code: str) -> str:
    """What the interpreter prints for this code, without any variable of this process."""
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, env={}, check=False)
    return done.stdout.strip() or done.stderr.strip()


class Log:
    """The lines for the job's log."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, line: str) -> None:
        self.lines.append(line)

    @property
    def builds(self) -> int:
        return sum(line.startswith("building") for line in self.lines)


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("asked", "text", "node", "expected"),
    [
        (EnvironmentRequest(pip=("transformers==5.*",)), "", NODE, True),
        (EnvironmentRequest(pip=("torch>=2.10",)), "", NODE, True),
        (EnvironmentRequest(pip=("torch<2.6",)), "", NODE, False),
        (EnvironmentRequest(), "torch<2.6  # old\n", NODE, False),
        (EnvironmentRequest(), "torch<=2.12.0 --hash=sha256:00 \\\n", NODE, True),
        (EnvironmentRequest(), "-r other.txt\n./a.whl\n", NODE, True),
        (EnvironmentRequest(pip=("numpy",)), "", NodePackages(python="3.11", torch=None), True),
        (EnvironmentRequest(pip=("torch",)), "", NodePackages(python="3.11", torch=None), False),
        (EnvironmentRequest(python="3.12"), "", NODE, False),
        (EnvironmentRequest(python="3.11"), "", NODE, True),
        (EnvironmentRequest(pip=("numpy",), inherit=False), "", NODE, False),
    ],
)
def test_an_environment_inherits_where_the_packages_of_the_node_satisfy_it(
    asked: EnvironmentRequest, text: str, node: NodePackages, expected: bool
) -> None:
    assert inherits(asked, text, node) is expected


def test_what_cannot_inherit_and_asks_for_it_is_refused_with_the_reason() -> None:
    with pytest.raises(EnvironmentImpossible, match=r"PyTorch 2\.12\.0, which does not satisfy 'torch<2\.6'"):
        inherits(EnvironmentRequest(pip=("torch<2.6",), inherit=True), "", NODE)
    with pytest.raises(EnvironmentImpossible, match=r"the nodes have Python 3\.11, not 3\.9"):
        inherits(EnvironmentRequest(python="3.9", inherit=True), "", NODE)


def test_equal_requests_have_one_environment_and_others_have_their_own() -> None:
    def digest(*pip: str, contents: bytes = b"", node: NodePackages = NODE, is_inherited: bool = True) -> str:
        return digest_of(EnvironmentRequest(pip=pip), contents, node, "sha256:1", is_inherited=is_inherited)

    assert digest("a", "b") == digest("b", "a")
    newer = NodePackages(python="3.11", torch="2.14.1")
    others = [
        digest("a"),
        digest("a", contents=b"c"),
        digest("a", node=newer),
        digest("a", is_inherited=False),
    ]
    assert len({digest("a", "b"), *others}) == 5
    assert digest("a", is_inherited=False) == digest("a", node=newer, is_inherited=False)


@pytest.mark.parametrize(
    ("pip", "file", "text", "expected"),
    [
        (("numpy", "transformers==5.*"), None, "", False),
        (("./own-1.0-py3-none-any.whl",), None, "", True),
        (("own @ file:///own-1.0-py3-none-any.whl",), None, "", True),
        ((), "requirements.txt", "numpy==2.4.6 \\\n    --hash=sha256:00  # via torch\n\n# end\n", False),
        ((), "requirements.txt", "-r other.txt\n", True),
        ((), "pylock.toml", "[[packages]]\nname = 'numpy'\n", False),
        ((), "pylock.toml", "[[packages]]\nname = 'own'\n[packages.directory]\n'pa\\u0074h' = 'own'\n", True),
        ((), "pylock.toml", "[[packages]]\nname = 'own'\nwheels = [{url = 'file:///own.whl'}]\n", True),
        ((), "pyproject.toml", "[project]\ndependencies = ['numpy']\n", False),
        ((), "below/pyproject.toml", "[project]\ndependencies = ['numpy']\n", True),
        ((), "pyproject.toml", "[project]\ndependencies = ['own @ file:///own.whl']\n", True),
        ((), "pyproject.toml", "[project]\ndynamic = ['dependencies']\n", True),
        (
            (),
            "pyproject.toml",
            "[project]\ndependencies = ['own']\n[tool.uv.sources]\nown = {\"p\\u0061th\" = 'own'}\n",
            True,
        ),
        ((), "pyproject.toml", "this is not TOML", True),
        (("own-1.0-py3-none-any.whl",), None, "", True),
        ((), "requirements.txt", "numpy --hash=sha256:00 -e ./own\n", True),
        ((), "requirements.txt", "numpy\n-e \\\n./own\n", True),
        ((), "needed.py", "# /// script\n# dependencies = ['own']\n# ///\n", True),
        ((), "other.lock", "version = 1\n", True),
    ],
)
def test_what_is_installed_from_the_code_belongs_to_that_code_alone(
    pip: tuple[str, ...], file: str | None, text: str, expected: bool
) -> None:
    asked = EnvironmentRequest(pip=pip, requirements=file)
    one, other = (digest_of(asked, text.encode(), NODE, code, is_inherited=True) for code in ("a", "b"))
    assert (one != other) is expected


@pytest.mark.parametrize(
    ("packages", "project", "expected"),
    [
        ("[[package]]\nname = 'mine'\nsource = {virtual = '.'}", "[project]\nname = 'mine'", True),
        ("[[package]]\nname = 'mine'\nsource = {virtual = '.'}", "this is not TOML", False),
        ("[[package]]\nname = 'mine'\nsource = {editable = '.'}", "[project]\nname = 'other'", False),
        (
            "[[package]]\nname = 'own'\nsource = {\"\\u0065ditable\" = 'own'}",
            "[project]\nname = 'mine'",
            False,
        ),
    ],
)
def test_a_lock_with_packages_of_the_code_belongs_to_that_code(
    packages: str, project: str, *, expected: bool
) -> None:
    assert only_names((), "uv.lock", packages, project) is expected
    asked = EnvironmentRequest(requirements="uv.lock")
    one, other = (
        digest_of(asked, packages.encode(), NODE, code, is_inherited=True, project=project.encode())
        for code in ("a", "b")
    )
    assert (one == other) is expected


def test_what_a_removal_has_left_is_never_taken_for_an_environment(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(folder: Path) -> None:
        raise OSError(f"killed while {folder} was removed")

    root, asked = tmp_path / "envs", EnvironmentRequest(pip=(f"./{wheel(code)}",))
    with environment(asked, code, Log(), root) as built:
        pass
    with monkeypatch.context() as patched:
        patched.setattr(build, "remove_tree", killed)
        assert prune(root, most=0) == []
    (built.python.parent.parent / "lib").rename(tmp_path / "half")
    with environment(asked, code, log := Log(), root) as again:
        assert said_by(again.python, "import tiny; print(tiny.VERSION)") == "1.0"
    assert log.builds == 1


def test_it_has_its_own_packages_and_behind_them_those_of_the_node(code: Path, tmp_path: Path) -> None:
    log, asked = Log(), EnvironmentRequest(pip=(f"./{wheel(code)}",))
    with environment(asked, code, log, tmp_path / "envs") as built:
        assert built.packages == 1
        assert said_by(built.python, "import tiny; print(tiny.VERSION)") == "1.0"
        place = said_by(built.python, "import pydantic; print(pydantic.__file__)")
        assert Path(place).is_relative_to(Path(sys.prefix))
        assert said_by(built.python, "import remora.training, sys; print(sys.prefix)") == str(
            built.python.parent.parent
        )
    assert log.lines[-1].endswith("1 packages were installed")
    with environment(asked, code, log, tmp_path / "envs") as again:
        assert (again.digest, again.build_s, log.builds) == (built.digest, 0.0, 1)


@pytest.mark.parametrize("isolation", ["none", "auto"])
@pytest.mark.parametrize(("wanted", "version"), [("tiny", "1.0"), ("tiny>=2", "2.0")])
def test_one_that_inherits_has_the_nodes_versions_of_what_is_loaded_where_that_is_possible(
    code: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    isolation: Isolation,
    wanted: str,
    version: str,
) -> None:
    for one in ("1.0", "2.0"):
        wheel(code, version=one)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(code))
    node = NodePackages(python=OWN, torch=node_packages().torch, beside=("tiny==1.0",))
    monkeypatch.setattr(build, "node_packages", lambda: node)
    asked = EnvironmentRequest(pip=(wanted,))
    with environment(asked, code, lambda _: None, tmp_path / "envs", isolation=isolation) as built:
        assert said_by(built.python, "import tiny; print(tiny.VERSION)") == version
        assert built.packages == 1


def test_the_node_says_which_packages_are_loaded_with_pytorch() -> None:
    code = "import sys, torch; print(*{one.partition('.')[0].replace('_', '-') for one in sys.modules})"
    loaded = set(said_by(Path(sys.executable), code).split())
    names = {one.partition("==")[0] for one in node_packages().beside}
    assert names
    assert names <= loaded
    assert "torch" not in names


@pytest.mark.parametrize("isolation", ["none", "auto"])
def test_the_nodes_versions_make_nothing_older_that_the_job_asked_for(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, isolation: Isolation
) -> None:
    for version in ("1.0", "2.0"):
        wheel(code, version=version)
        wheel(code, "wanted", version, requires=[f"tiny=={version}"])
    wheel(code, "easily", "1.0", requires=["tiny"])
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(code))
    node = NodePackages(python=OWN, torch=node_packages().torch, beside=("tiny==1.0",))
    monkeypatch.setattr(build, "node_packages", lambda: node)
    for pip, versions in ((("wanted",), "2.0 2.0"), (("easily",), "1.0 1.0")):
        asked, name = EnvironmentRequest(pip=pip), pip[0]
        with environment(asked, code, lambda _: None, tmp_path / "envs", isolation=isolation) as built:
            said = said_by(built.python, f"import {name}, tiny; print({name}.VERSION, tiny.VERSION)")
            assert said == versions
            assert built.packages == 2


def test_the_nodes_versions_are_left_out_whatever_uv_says_against_them(tmp_path: Path) -> None:
    work = build.BuildWork(lambda _: None, lambda _: None, TimeLimit(), 100)
    asked: list[str] = []

    def run(options: list[str]) -> int:
        asked.append(options[-1])
        if "--dry-run" in options:
            work.take(" + tiny==2.0")
            work.take(" + wanted==3.0")
        elif "--constraints" in options:
            # The last lines of a long message do not have its beginning.
            assert Path(options[-1]).read_text() == "wanted==3.0\ntiny==1.0\n"
            raise EnvironmentFailed("we can conclude that your requirements are unsatisfiable")
        return 2

    assert build._install_with(run, ["install"], tmp_path, ("tiny==1.0",), work) == 2
    assert [one.rpartition("/")[2] for one in asked] == ["--dry-run", "same.txt", "install"]


def test_a_package_without_a_wheel_does_not_keep_the_nodes_versions_away(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("1.0", "2.0"):
        wheel(code, version=version)
    made = wheel(tmp_path, "unwheeled")
    (tmp_path / "backend.py").write_text(
        f"import shutil\ndef build_wheel(folder, *_, **__):\n    return shutil.copy('{made}', folder) and '{made}'\n"
    )
    (tmp_path / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    with tarfile.open(code / "unwheeled-1.0.tar.gz", "w:gz") as archive:
        for name in (made, "backend.py", "pyproject.toml"):
            archive.add(tmp_path / name, f"unwheeled-1.0/{name}")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    # The folder of the code, also where it is a copy.
    monkeypatch.setenv("UV_FIND_LINKS", ".")
    node = NodePackages(python=OWN, torch=node_packages().torch, beside=("tiny==1.0",))
    monkeypatch.setattr(build, "node_packages", lambda: node)
    asked = EnvironmentRequest(pip=("unwheeled", "tiny"))
    with environment(asked, code, print, tmp_path / "envs") as built:
        assert (
            said_by(built.python, "import unwheeled, tiny; print(unwheeled.VERSION, tiny.VERSION)")
            == "1.0 1.0"
        )


@pytest.mark.parametrize("isolation", ["none", "auto"])
def test_a_lock_of_the_standard_is_installed_as_it_is(
    code: Path, tmp_path: Path, isolation: Isolation
) -> None:
    file = wheel(code)
    digest = hashlib.sha256((code / file).read_bytes()).hexdigest()
    (code / "pylock.toml").write_text(
        'lock-version = "1.0"\ncreated-by = "test"\n[[packages]]\nname = "tiny"\nversion = "1.0"\n'
        f'wheels = [{{ path = "{file}", hashes = {{ sha256 = "{digest}" }} }}]\n'
    )
    asked = EnvironmentRequest(requirements="pylock.toml")
    with environment(asked, code, lambda _: None, tmp_path / "envs", isolation=isolation) as built:
        assert said_by(built.python, "import tiny; print(tiny.VERSION)") == "1.0"


def test_one_that_does_not_inherit_has_remora_and_no_other_package_of_the_node(
    code: Path, tmp_path: Path
) -> None:
    asked = EnvironmentRequest(pip=(f"./{wheel(code)}",), inherit=False)
    with environment(asked, code, Log(), tmp_path / "envs") as built:
        assert said_by(built.python, "import remora.training, tiny; print('both')") == "both"
        assert "No module named 'pydantic'" in said_by(built.python, "import pydantic")


@pytest.mark.parametrize("version", ["3.9", "3.10", "3.12", "3.13"])
def test_another_version_of_python_has_remora(version: str, code: Path, tmp_path: Path) -> None:
    with environment(EnvironmentRequest(python=version), code, Log(), tmp_path / "envs") as built:
        said = said_by(built.python, "import remora.training, sys; print(sys.version)")
        assert said.startswith(version)


def test_remora_torch_is_written_for_the_oldest_python_that_pytorch_has(tmp_path: Path) -> None:
    with environment(EnvironmentRequest(python="3.10"), tmp_path, Log(), tmp_path / "envs") as built:
        checked = "import sys; [compile(open(path).read(), path, 'exec') for path in sys.argv[1:]]"
        sources = [str(path) for path in (ROOT / "remora").glob("torch/**/*.py")]
        done = subprocess.run([built.python, "-c", checked, *sources], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(sources) > 20


LOCK = """
version = 1
[[package]]
name = "mine"
version = "0.1"
source = { virtual = "." }
[[package]]
name = "torch"
version = "2.12.0"
source = { registry = "index" }
"""


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("uv.lock", LOCK, True),
        ("uv.lock", LOCK.replace("2.12.0", "2.9.0"), False),
        ("pylock.toml", '[[packages]]\nname = "torch"\nversion = "2.12.0"\n', True),
        ("pylock.toml", '[[packages]]\nname = "torch"\nversion = "2.9.0"\n', False),
        ("pyproject.toml", '[project]\ndependencies = ["torch>=2.12", "tqdm"]\n', True),
        ("pyproject.toml", '[project]\ndependencies = ["torch<2.10"]\n', False),
        ("pyproject.toml", "this is not TOML", True),
    ],
)
def test_a_version_of_pytorch_that_a_lock_or_a_project_names_decides_too(
    file: str, text: str, *, expected: bool
) -> None:
    assert inherits(EnvironmentRequest(requirements=file), text, NODE) is expected


@pytest.mark.parametrize("isolation", ["auto", "none"])
def test_settings_of_uv_in_the_code_have_no_effect(
    isolation: Isolation, code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "poison").mkdir()
    wheel(tmp_path / "site")
    wheel(tmp_path / "poison", version="6.6")
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "site"))
    canary = tmp_path / "canary"
    general = f"cache-dir = '{canary}/cache'\nfind-links = ['{tmp_path}/poison']\n"
    (code / "uv.toml").write_text(f"{general}[pip]\ntarget = '{canary}/target'\n")
    asked = EnvironmentRequest(pip=("tiny",))
    with environment(asked, code, Log(), tmp_path / "envs", isolation=isolation) as built:
        assert said_by(built.python, "import tiny; print(tiny.VERSION)") == "1.0"
    assert not canary.exists()


def test_a_project_with_a_lock_gets_its_exact_versions_and_no_pytorch(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = str(node_packages().torch)
    wheel(code, "tiny", "1.0")
    wheel(code, "needed", "2.0", requires=("tiny",))
    wheel(code, "torch", torch, requires=("heavy",))
    wheel(code, "heavy", "1.0")
    (code / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "0.1"\nrequires-python = ">=3.9"\n'
        f'dependencies = ["needed", "torch=={torch}"]\n[tool.uv]\nno-index = true\nfind-links = ["."]\n'
    )
    subprocess.run([build.uv_program(), "lock", "--quiet"], cwd=code, check=True)
    monkeypatch.setenv("UV_NO_INDEX", "1")
    monkeypatch.setenv("UV_FIND_LINKS", str(code))
    # A newer one is there, and the lock does not name it.
    wheel(code, "tiny", "9.0")
    log = Log()
    with environment(EnvironmentRequest(requirements="uv.lock"), code, log, tmp_path / "envs") as built:
        said = said_by(built.python, "import tiny, needed; print(tiny.VERSION, needed.VERSION)")
        assert (said, built.packages) == ("1.0 2.0", 2), log.lines
        assert "No module named 'heavy'" in said_by(built.python, "import heavy"), "only PyTorch needs it"
        assert said_by(built.python, "import torch; print(torch.__version__)").startswith(torch)


def test_a_lock_belongs_to_its_project(code: Path, tmp_path: Path) -> None:
    (code / "uv.lock").write_text(LOCK)
    building = environment(EnvironmentRequest(requirements="uv.lock"), code, Log(), tmp_path / "envs")
    with pytest.raises(EnvironmentFailed, match=r"needs its pyproject\.toml beside it"), building:
        pytest.fail("it was built")


def test_commands_finish_an_environment_once(code: Path, tmp_path: Path) -> None:
    file = wheel(code)
    setup = f"pip install --quiet --no-index ./{file}\necho finishing\ndate > $VIRTUAL_ENV/finished"
    asked, log = EnvironmentRequest(setup=setup), Log()
    for _ in range(2):
        with environment(asked, code, log, tmp_path / "envs", bundle="sha256:1") as built:
            assert said_by(built.python, "import tiny, numpy; print(tiny.VERSION)") == "1.0"
            assert (built.python.parent.parent / "finished").exists()
    assert (log.builds, log.lines.count("finishing")) == (1, 1)
    assert "No module named 'tiny'" in said_by(Path(sys.executable), "import tiny")
    # They may read the code, so that another code has another environment.
    with environment(asked, code, log, tmp_path / "envs", bundle="sha256:2"):
        assert log.builds == 2


def test_commands_that_fail_are_shown_with_their_last_lines(code: Path, tmp_path: Path) -> None:
    asked = EnvironmentRequest(setup="echo so far; false; echo on")
    building = environment(asked, code, Log(), tmp_path / "envs")
    with pytest.raises(EnvironmentFailed, match=r"environment.setup failed: so far$"), building:
        pytest.fail("it was built")


def test_a_record_that_commands_write_does_not_make_an_environment_complete(
    code: Path, tmp_path: Path
) -> None:
    record = (
        '{"packages": 1, "build_id": "00112233445566778899aabbccddeeff", "version": [3, 11], "base": "/"}'
    )
    said = f"for name in remora.json $(basename $VIRTUAL_ENV).json; do echo '{record}' > $VIRTUAL_ENV/$name; done"
    asked, log = EnvironmentRequest(setup=f"{said}; false"), Log()
    for attempt in (1, 2):
        building = environment(asked, code, log, tmp_path / "envs")
        with pytest.raises(EnvironmentFailed, match=r"environment\.setup failed"), building:
            pytest.fail("it was built")
        assert log.builds == attempt
        assert build.kept_environments(tmp_path / "envs") == []


def test_an_interpreter_that_commands_replace_shows_no_other_folder(code: Path, tmp_path: Path) -> None:
    (tmp_path / "secret/bin").mkdir(parents=True)
    (tmp_path / "secret/bin/python").touch()
    setup = f"ln -sf {tmp_path}/secret/bin/python $VIRTUAL_ENV/bin/python"
    base = Path(sys.executable).resolve().parent.parent
    for _ in range(2):
        with environment(EnvironmentRequest(setup=setup), code, Log(), tmp_path / "envs") as built:
            assert built.python.readlink() == tmp_path / "secret/bin/python"
            assert build.environment_folders(built) == [tmp_path / "envs" / built.digest, base]


def test_workers_of_a_node_build_it_once(code: Path, tmp_path: Path) -> None:
    log, asked = Log(), EnvironmentRequest(pip=(f"./{wheel(code)}",))
    together = threading.Barrier(3)

    def use() -> None:
        with environment(asked, code, log, tmp_path / "envs"):
            together.wait(60)  # all of them have it at one time

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert log.builds == 1
    assert not together.broken


def test_requirements_are_a_file_of_the_code(code: Path, tmp_path: Path) -> None:
    (code / "requirements.txt").write_text(f"./{wheel(code)}\n")
    with environment(
        EnvironmentRequest(requirements="requirements.txt"), code, Log(), tmp_path / "e"
    ) as built:
        assert said_by(built.python, "import tiny; print(tiny.VERSION)") == "1.0"
    outside = tmp_path / "outside.txt"
    outside.write_text("tiny\n")
    (code / "link.txt").symlink_to(outside)
    for name in ("link.txt", "absent.txt"):
        asked = EnvironmentRequest(requirements=name)
        with (
            pytest.raises(EnvironmentFailed, match="there is no file"),
            environment(asked, code, Log(), tmp_path / "e"),
        ):
            pass


def test_a_failure_shows_what_uv_said_and_the_next_try_starts_again(code: Path, tmp_path: Path) -> None:
    file, log = wheel(code), Log()
    whole = (code / file).read_bytes()
    (code / file).write_bytes(whole[:40])
    asked = EnvironmentRequest(pip=(f"./{file}",))
    with pytest.raises(EnvironmentFailed, match=file), environment(asked, code, log, tmp_path / "envs"):
        pass
    (code / file).write_bytes(whole)
    with environment(asked, code, log, tmp_path / "envs") as built:
        assert said_by(built.python, "import tiny; print(tiny.VERSION)") == "1.0"
    assert log.builds == 2


def test_a_build_that_takes_too_long_ends_with_all_its_processes(
    code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = tmp_path / "uv"
    slow.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nsleep 600 & wait\n")
    slow.chmod(0o755)
    monkeypatch.setattr(build, "uv_program", lambda: str(slow))
    monkeypatch.setattr(build, "BUILD_LIMIT_S", 2.5)
    with (
        pytest.raises(EnvironmentFailed, match=r"not built within 2\.5 s"),
        environment(EnvironmentRequest(pip=("a",)), code, Log(), tmp_path / "envs"),
    ):
        pass
    group = int((tmp_path / "pid").read_text())
    killed = [one for one in psutil.process_iter() if _group_of(one) == group]
    # Its child has no parent that waits for its end any more.
    _, left = psutil.wait_procs([one for one in killed if one.status() != psutil.STATUS_ZOMBIE], timeout=10)
    assert [one for one in left if one.status() != psutil.STATUS_ZOMBIE] == []


def _group_of(process: psutil.Process) -> int | None:
    try:
        return os.getpgid(process.pid)
    except ProcessLookupError:
        return None


def test_those_used_longest_ago_are_removed_and_none_that_is_in_use(code: Path, tmp_path: Path) -> None:
    root = tmp_path / "envs"
    asked = [EnvironmentRequest(pip=(f"./{wheel(code, version=f'1.{n}')}",)) for n in range(3)]
    with environment(asked[0], code, Log(), root) as used:
        digests = []
        for at, one in enumerate(asked[1:], 1):
            with environment(one, code, Log(), root) as built:
                digests.append(built.digest)
            os.utime(root / f"{built.digest}.json", (1000.0 + at, 1000.0 + at))
        os.utime(root / f"{used.digest}.json", (1.0, 1.0))
        assert prune(root, most=1) == [digests[0]], "the first one is in use"
        assert used.python.exists()


def test_the_node_names_its_python() -> None:
    assert node_packages().python == OWN


def test_a_build_ends_at_once_when_its_job_is_stopped(code: Path, tmp_path: Path) -> None:
    # A source whose build waits for something that never comes.
    (code / "own").mkdir()
    (code / "own/pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "slow"\nbackend-path = ["."]\n'
        '[project]\nname = "own"\nversion = "1.0"\n'
    )
    begun = tmp_path / "begun"
    os.mkfifo(begun)
    (code / "own/slow.py").write_text(
        f"import threading\nopen({str(begun)!r}, 'w').close()\nthreading.Event().wait()\n"
    )
    stop = threading.Event()

    def stop_once_it_builds() -> None:
        with begun.open():
            stop.set()

    waiting = threading.Thread(target=stop_once_it_builds)
    waiting.start()
    asked = EnvironmentRequest(pip=("./own",))
    # It opens a file of the test, which users of jobs do not see.
    building = environment(asked, code, Log(), tmp_path / "envs", stop=stop, isolation="none")
    with pytest.raises(EnvironmentFailed, match="is being stopped"), building:
        pytest.fail("it was built")
    waiting.join()
    assert not [one for one in psutil.process_iter() if str(code) in " ".join(cmdline(one))]


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_the_state_of_a_build_is_shown_as_it_changes() -> None:
    shown: list[str] = []
    work = build.BuildWork(Log(), shown.append, threading.Event(), 64)
    for line in (
        "Resolved 31 packages in 753ms",
        "Downloading numpy (16.1MiB)",
        "Downloading tokenizers (3.2MiB)",
        "Downloaded tokenizers",
        "Prepared 31 packages in 3.00s",
        "Installed 31 packages in 150ms",
    ):
        work.take(line)
    assert shown == [
        "31 packages",
        "31 packages, downloading numpy (16.1MiB)",
        "31 packages, downloading numpy (16.1MiB), tokenizers (3.2MiB)",
        "31 packages, downloading numpy (16.1MiB)",
        "31 packages",
    ]
