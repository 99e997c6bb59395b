"""Where a process may make cgroups, by what the kernel says of its mounts, and what is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from remora import cgroups
from remora.cgroups import Cgroup, ProcessesRemain, Walls, own_places

HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
39 31 0:36 / /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
PURE = "35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"


@pytest.mark.parametrize(
    ("mountinfo", "own", "unified", "counting"),
    [
        (HYBRID, "8:pids:/\n0::/\n", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids"),
        (HYBRID, "8:pids:/a\n0::/b/c\n", "/sys/fs/cgroup/unified/b/c", "/sys/fs/cgroup/pids/a"),
        (PURE, "0::/user.slice/x.scope\n", "/sys/fs/cgroup/user.slice/x.scope", None),
        (PURE.replace(" rw,nosuid", " ro,nosuid"), "0::/\n", None, None),
        (PURE.replace("0:30 / ", "0:30 /docker/1 "), "0::/docker/1/x\n", "/sys/fs/cgroup/x", None),
        (PURE.replace("0:30 / ", "0:30 /docker/1 "), "0::/docker/2\n", None, None),
        (PURE, "0::/../../outside\n", None, None),
        (PURE.replace("/sys/fs/cgroup ", "/with\\040space "), "0::/a\n", "/with space/a", None),
        ("", "0::/\n", None, None),
        (PURE, "1:name=systemd:/\n", None, None),
    ],
    ids=["both", "below", "pure", "read-only", "part", "elsewhere", "above", "space", "none", "version 1"],
)
def test_a_process_finds_its_own_cgroups(
    mountinfo: str, own: str, unified: str | None, counting: str | None
) -> None:
    found = own_places(mountinfo, own)
    assert found == (unified and Path(unified), counting and Path(counting))


def test_what_a_machine_does_not_hold_is_said() -> None:
    nothing = Walls(folder=None, why_not="it is old").sentence
    assert "it is old" in nothing
    assert "subreapers" in nothing
    assert "nothing limits their number" in nothing
    assert "nothing limits" in Walls(folder=Path("/x")).sentence
    assert "nothing limits" not in Walls(folder=Path("/x"), counts=True).sentence


@pytest.fixture
def cgroup(tmp_path: Path) -> Cgroup:
    del tmp_path
    found = cgroups.owned("test")
    if found is None:
        pytest.skip(cgroups.walls().sentence)
    found.make()
    return found


def test_a_cgroup_with_others_in_it_ends_whole(cgroup: Cgroup) -> None:
    (cgroup.path / "made by a script").mkdir()
    enter = f"open({str(cgroup.path / 'made by a script' / 'cgroup.procs')!r}, 'w').write('0')"
    code = f"{enter}\nimport signal; print(1, flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert cgroup.processes() == [process.pid]
        assert not cgroup.remove()
        assert cgroup.end() == 1
        assert process.wait() == -9
    assert not cgroup.path.exists()
    assert cgroup.end() == 0, "again is fine"


def test_a_cgroup_that_another_process_ends_at_the_same_time_is_gone(
    cgroup: Cgroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = os.pread

    def read_late(descriptor: int, size: int, offset: int) -> bytes:
        assert cgroup.remove()
        return read(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", read_late)
    assert cgroup.kill() == 0
    assert not cgroup.path.exists()


def test_what_does_not_end_is_named(cgroup: Cgroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cgroup, "send_kill", lambda _: None)
    enter = f"open({str(cgroup.path / 'cgroup.procs')!r}, 'w').write('0')"
    code = f"{enter}\nimport signal; print(1, flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        began = time.monotonic()
        with pytest.raises(ProcessesRemain, match=str(process.pid)):
            cgroup.kill(0.05)
        assert time.monotonic() - began < 5.0
        process.kill()
    cgroup.remove()


def test_only_cgroups_of_the_dead_are_swept(cgroup: Cgroup) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    name, namespace, _, start = cgroup.path.name.rsplit(".", 3)
    dead = Cgroup(cgroup.path.with_name(f"{name}.{namespace}.{gone.pid}.{start}"))
    recycled = Cgroup(cgroup.path.with_name(f"{name}.{namespace}.{os.getpid()}.1"))
    foreign = Cgroup(cgroup.path.with_name(f"{name}.1.{gone.pid}.{start}"))
    for one in (dead, recycled, foreign):
        one.make()
    cgroups.sweep()
    found = [one.path.exists() for one in (cgroup, dead, recycled, foreign)]
    for one in (cgroup, foreign):
        one.end()
    assert found == [True, False, False, True], "another container's processes cannot be seen from here"
