"""A node without rights: it runs a hostile command in namespaces of its own, and prints what that command found.

    python -m tests.unit.trainers.rootless_stage HOME ISOLATION

HOME is that of the node's user; `tests/rootless.py` starts this as that user.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from remora.isolation import Isolation
from tests.unit.trainers.test_child import OUTLIVERS, WAIT_FOR_PID
from tests.unit.trainers.test_umask_of_nodes import GroupHarness
from trainers.isolation.confined import confined_job
from trainers.isolation.mounts import Shown
from trainers.processes.fork_server_client import ForkServer

#: A key of System V objects that nothing else here has.
_KEY = 0x52454D4F
_HOSTILE = """
import ctypes, json, os, pathlib, sys
hints = json.loads(os.environ["HINTS"])
libc = ctypes.CDLL(None, use_errno=True)
found = []
def tries(what, attempt):
    try:
        if attempt() is not False:
            found.append(what)
    except OSError:
        pass
for path in hints["secrets"]:
    tries(f"it reads {path}", lambda: pathlib.Path(path).read_text() and None)
    tries(f"it sees {path}", lambda: os.lstat(path) and None)
    # Upwards from where another process is, below what covers that place.
    parts = path.split("/")
    for place in ("cwd", "root"):
        for depth in range(1, 12):
            for first in range(1, len(parts)):
                below = f"/proc/1/{place}{'/..' * depth}/{'/'.join(parts[first:])}"
                tries(f"it reaches {path} by /proc/1/{place}", lambda: os.lstat(below) and None)
for kind, pid in hints["pids"].items():
    tries(f"it signals {kind}", lambda: os.kill(pid, 0))
    tries(f"it traces {kind}", lambda: libc.ptrace(0x4206, pid, 0, 0) == 0)
    tries(f"it reads the memory of {kind}", lambda: open(f"/proc/{pid}/mem").close())
others = [name for name in os.listdir("/proc") if name.isdecimal() and int(name) not in (1, os.getpid())]
tries(f"it sees processes {others}", lambda: bool(others))
# The kernel ignores it: else nothing of this goes on.
os.kill(1, 9)
tries("it has the memory of another one", lambda: libc.shmget(hints["key"], 4096, 0) >= 0)
places = ["/", "/usr", "/usr/local", "/etc", "/opt", "/home", "/root", "/dev", "/run", "/var"]
places += [sys.prefix, sys.base_prefix, "/sys/fs/cgroup", "/proc/sys/kernel"]
for place in places:
    tries(f"it writes to {place}", lambda: pathlib.Path(place, "canary-written").touch())
for setting in ("kernel/core_pattern", "vm/overcommit_memory"):
    tries(f"it changes {setting}", lambda: open(f"/proc/sys/{setting}", "r+").close())
status = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text().splitlines())
for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb"):
    tries(f"it has rights: {name}", lambda: int(status[name], 16) != 0)
tries("it may get rights", lambda: status["NoNewPrivs"].strip() != "1")
resumed = pathlib.Path("../resume/state")
assert resumed.read_text() == "stored"
tries("it writes to the checkpoint that it resumes", lambda: resumed.open("a").close())
tries("it changes the rights of that", lambda: resumed.chmod(0o777))
tries("it replaces that", lambda: resumed.parent.rename("../other"))
if os.fork() == 0:
    # A user namespace is not left again.
    if libc.unshare(0x10000000 | 0x20000) == 0:
        for cover in (hints["home"], "/tmp", "/dev/shm", "/dev", "/proc", "/home", "/root", "/var"):
            libc.umount2(cover.encode(), 2)
        for path in hints["secrets"]:
            tries(f"it uncovers {path}", lambda: os.lstat(path) and None)
        tries("it makes the rest writable", lambda: libc.mount(None, b"/", None, 32 | 4096, None) == 0)
    os.write(1, f"UNCOVERED {json.dumps(found)}\\n".encode())
    os._exit(0)
os.wait()
for place in (os.getcwd(), os.environ["HOME"], "/tmp", "/var/tmp", "/dev/shm"):
    pathlib.Path(place, "own").write_text("own")
os.close(os.openpty()[0])
assert subprocess_runs()
print("FOUND", json.dumps(found), flush=True)
"""
_RUNS = """
def subprocess_runs():
    import subprocess
    return subprocess.run(["id", "-u"], capture_output=True, text=True).stdout.strip() == str(os.getuid())
"""


class ResumingHarness(GroupHarness):
    """Its commands resume from a checkpoint in the folder of their group."""

    def _shown(self) -> list[Shown]:
        resume = self.folder.parent / "resume"
        return [*super()._shown(), Shown(source=resume, target=resume)]


def main(home: Path, asked: Isolation) -> dict[str, object]:
    """The lines of the hostile command, started and forked, and of a second worker of its job."""
    with (
        tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="canary-") as memory,
        tempfile.TemporaryDirectory() as own,
    ):
        secrets = [home / "canary", Path(own) / "canary", Path(memory.name)]
        for path in secrets:
            path.write_text("secret")
        libc = ctypes.CDLL(None)
        segment = libc.shmget(_KEY, 4096, 0o1600)
        victim = subprocess.Popen(["sleep", "600"])
        try:
            hints = {
                "secrets": [str(path) for path in secrets],
                "pids": {"another process": victim.pid, "its supervisor": os.getpid()},
                "key": _KEY,
                "home": str(home),
            }
            return {way: _run(home, way, asked, hints) for way in ("started", "forked")}
        finally:
            victim.kill()
            victim.wait()
            libc.shmctl(segment, 0, None)


def _run(home: Path, way: str, asked: Isolation, hints: dict[str, object]) -> dict[str, object]:
    work = home / way
    folder, temporary = work / "folder", work / "temporary"
    for path in (work, folder, temporary, work / "resume"):
        path.mkdir()
    # As a storage on the same disk gives it.
    stored = home / f"stored-{way}"
    stored.write_text("stored")
    os.link(stored, work / "resume" / "state")
    server = ForkServer(work / "server", os.getpid(), []) if way == "forked" else None
    with confined_job(asked, way, work, temporary) as job:
        assert job is not None
        harness = ResumingHarness(folder, server, 0, job)
        variables = {"HINTS": json.dumps(hints), "HOME": str(job.home)}
        status = harness.python(textwrap.dedent(f"import os\n{_RUNS}{_HOSTILE}"), **variables).wait()
        code = "print('SHARED', [open(p + '/own').read() for p in ('/tmp', '/var/tmp', '/dev/shm', '.')])"
        harness.python(code).wait()
        lines = [text for _, text in harness.heard.lines]
        left = harness.python(OUTLIVERS["double fork"] + WAIT_FOR_PID).wait()
        return {"status": status, "lines": lines, "left": left, "is_alone": harness.is_left_alone()}


if __name__ == "__main__":
    os.environ["REMORA_WORK_DIR"] = f"{sys.argv[1]}/node"
    print("REPORT " + json.dumps(main(Path(sys.argv[1]), sys.argv[2])), flush=True)  # type: ignore[arg-type]
