"""What the jobs of a project keep on a node: who sees it, whose it is, and what goes when it becomes too large."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from remora.machine_isolation import offered
from tests.job_uids import own_uids
from trainers.isolation import confinement, project_cache
from trainers.isolation.confined import ConfinedJob, confined_job
from trainers.isolation.mounts import Shown
from trainers.isolation.project_cache import Kept, kept, to_remove

UIDS = own_uids(10)
MOST = 1 << 20
confined = pytest.mark.skipif(offered().uids is None, reason=f"no walls here: {offered().why_not}")


@contextlib.contextmanager
def job_of(project: str, name: str, root: Path, most_bytes: int = MOST) -> Iterator[ConfinedJob]:
    """A job of its own user."""
    folder, temporary = root / name, root / f"{name}-temporary"
    for path in (folder, temporary):
        path.mkdir()
    with confined_job("users", name, folder, temporary, project, most_bytes) as job:
        assert job is not None
        yield job


def run(job: ConfinedJob, code: str) -> str:
    folder = job.home.parent
    walls = json.dumps(job.on_node([Shown(source=folder, target=folder, is_read_only=False)], None).fields())
    words = [sys.executable, confinement.__file__, walls, str(folder), sys.executable, "-c", code]
    environment = {"PATH": os.environ["PATH"], **job.variables(), **job.cache_variables()}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=60)
    return done.stdout.strip() or done.stderr


WRITE = """
import os, pathlib
model = pathlib.Path(os.environ["HF_HOME"], "hub/models--a"); model.mkdir(parents=True)
(model / "weights").write_text("trained"); (model / "weights").chmod(0o600)
print(os.stat(model).st_uid == os.getuid())
"""
READ = """
import os, pathlib
weights = pathlib.Path(os.environ["XDG_CACHE_HOME"], "huggingface/hub/models--a/weights")
try:
    print(weights.read_text(), os.stat(weights).st_uid == os.getuid())
    weights.write_text("more")
except FileNotFoundError:
    print("nothing")
"""


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("REMORA_WORK_DIR", str(tmp_path / "work"))
    return tmp_path


@confined
def test_a_later_job_of_the_project_finds_it_as_its_own_and_no_other_project_does(node: Path) -> None:
    with job_of("vision", "first", node) as first:
        assert run(first, WRITE) == "True"
        with job_of("vision", "beside", node) as beside, job_of("language", "other", node) as other:
            assert beside.uid != first.uid
            assert run(beside, READ) == "trained True"
            assert run(other, READ) == "nothing"
            assert first.cache is not None
            path = f"{first.cache.folder}/huggingface"
            assert "Error" in run(other, f"import os; print(os.listdir({path!r}))")
    with job_of("vision", "later", node) as later:
        assert run(later, READ) == "more True"
        assert later.cache is not None
        (weights,) = later.cache.folder.rglob("weights")
        assert weights.stat().st_uid == later.cache.owner != later.uid


@confined
def test_what_is_kept_has_no_rights_for_others(node: Path) -> None:
    code = """
import os, pathlib
tool = pathlib.Path(os.environ["XDG_CACHE_HOME"], "tool"); tool.write_text("#!/bin/sh"); tool.chmod(0o4755)
print([line.split()[5] for line in open("/proc/self/mountinfo") if line.split()[4] == os.environ["XDG_CACHE_HOME"]][-1])
"""
    with job_of("vision", "first", node) as job:
        assert {"nosuid", "nodev"} <= set(run(job, code).split(","))


@confined
def test_it_is_cut_when_no_job_uses_it_and_new_jobs_do_without_while_it_is_too_large(node: Path) -> None:
    big = f"""
import os, pathlib
for name in ("old", "new"):
    path = pathlib.Path(os.environ["HF_HOME"], "hub", name); path.mkdir(parents=True)
    (path / "weights").write_bytes(bytes({MOST // 2 + 8192}))
    os.utime(path / "weights", (1000 if name == "old" else 2000,) * 2)
"""
    with job_of("vision", "first", node) as first:
        assert first.cache is not None
        folder = first.cache.folder
        with job_of("vision", "second", node) as second:
            assert run(second, big) == ""
        with job_of("vision", "third", node) as third:
            assert third.cache is None
            assert run(third, WRITE) == "True", "it has an empty one of its own"
    assert [path.name for path in folder.rglob("*") if path.parent.name == "hub"] == ["new"]
    with job_of("vision", "fourth", node) as fourth:
        assert fourth.cache is not None


@confined
def test_what_cannot_be_counted_is_removed_as_a_whole(node: Path) -> None:
    deep = """
import os
os.chdir(os.environ["XDG_CACHE_HOME"])
for _ in range(3000):
    os.mkdir("d"); os.chdir("d")
"""
    with job_of("vision", "first", node) as job:
        assert run(job, deep) == ""
        assert job.cache is not None
        folder = job.cache.folder
    assert list(folder.iterdir()) == []


@confined
def test_of_many_projects_those_used_longest_ago_go(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_cache, "MOST_PROJECTS", 2)
    folders = []
    for number in range(3):
        with job_of(f"project-{number}", f"job-{number}", node) as job:
            assert job.cache is not None
            folders.append(job.cache.folder)
        os.utime(f"{folders[-1]}.lock", (number, number))
    with job_of("project-3", "job-3", node):
        assert [one.exists() for one in folders] == [False, False, True]


def test_nothing_is_kept_where_nothing_may_be(node: Path) -> None:
    for project, most in (("", MOST), ("vision", 0)):
        with project_cache.project_cache(project, UIDS.last + 1, most) as cache:
            assert cache is None
    assert kept(node / "missing") == []


def test_what_was_used_longest_ago_goes_first_and_in_whole_folders() -> None:
    files = [
        Kept("huggingface/hub/a/blobs/1", 40, 5.0),
        Kept("huggingface/hub/a/blobs/2", 40, 9.0),
        Kept("huggingface/hub/b/blobs/1", 40, 7.0),
        Kept("pip", 10, 1.0),
    ]
    assert to_remove(files, 200) == []
    assert to_remove(files, 125) == ["pip"]
    assert to_remove(files, 100) == ["pip", "huggingface/hub/b"]
    assert to_remove(files, 0) == ["pip", "huggingface/hub/b", "huggingface/hub/a"]


def test_folders_above_others_count_and_go_with_all_of_them() -> None:
    files = [Kept("a", 10, 0.0), Kept("a/b", 10, 0.0), Kept("a/b/c", 10, 0.0), Kept("a/b/c/d", 5, 3.0)]
    files += [Kept("a/empty", 10, 0.0)]
    assert to_remove(files, 45) == []
    assert to_remove(files, 35) == ["a/empty"]
    assert to_remove(files, 20) == ["a/empty", "a/b/c"]
    assert to_remove(files, 19) == [""]


def test_folders_and_links_take_something_too(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = node / "kept"
    for number in range(40):
        (folder / "a" / str(number)).mkdir(parents=True)
        (folder / "a" / f"link-{number}").symlink_to("elsewhere")
    found = kept(folder)
    assert len(found) == 81
    assert sum(one.size_bytes for one in found) >= 81 * 512
    monkeypatch.setattr(project_cache, "MOST_FILES", 80)
    assert to_remove(kept(folder), MOST) == [""], "they are too many"
