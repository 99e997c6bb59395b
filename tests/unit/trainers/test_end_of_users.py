"""The end of a job's user where the node's user is not root, in a process namespace: a mistake kills nothing else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.job_uids import own_uids
from tests.needed import is_missing
from trainers.isolation import users

ROOT = Path(__file__).parents[3]
_OWN = own_uids(3)
TARGET, OTHER, NODE = range(_OWN.first, _OWN.last + 1)
#: The first process of the namespace: it starts a process of the job's user, one of another user, and a node with
#: capabilities and without root, which ends the job's user.
SCENE = """
import ctypes, json, os, signal, struct, subprocess, sys
root, target, other, node = sys.argv[1], *map(int, sys.argv[2:5])
libc = ctypes.CDLL(None)
# CAP_DAC_OVERRIDE (the interpreter may lie in a closed folder), CAP_KILL, CAP_SETGID, CAP_SETUID, CAP_SYS_PTRACE.
held = [1, 5, 6, 7, 19]

def become(uid):
    libc.prctl(8, 1, 0, 0, 0)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)

def keep():
    become(node)
    mask = sum(1 << one for one in held)
    assert libc.capset(struct.pack("Ii", 0x20080522, 0), struct.pack("6I", mask, mask, mask, 0, 0, 0)) == 0
    for one in held:
        assert libc.prctl(47, 2, one, 0, 0) == 0

def start(uid):
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setresuid(uid, uid, uid)
        os.write(write, b"x")
        while True:
            signal.pause()
    os.read(read, 1)
    return pid

def end_of(pid):
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None

processes = {"target": start(target), "other": start(other)}
code = "import sys; sys.path.insert(0, sys.argv[1]); from trainers.isolation.users import end_user, processes_of; "
code += "print(end_user(int(sys.argv[2])), processes_of(int(sys.argv[2])))"
done = subprocess.run([sys.executable, "-c", code, root, str(target)], preexec_fn=keep, capture_output=True, text=True)
seen = {name: end_of(pid) for name, pid in processes.items()}
print(json.dumps({**seen, "code": done.returncode, "said": done.stdout, "errors": done.stderr}))
"""


def test_a_node_that_is_not_root_ends_the_processes_of_one_user_and_no_others() -> None:
    unshare = shutil.which("unshare", path="/usr/bin:/bin")
    if os.geteuid() != 0 or unshare is None:
        is_missing("process namespaces need root and unshare: install util-linux, and run the tests as root")
    command = [unshare, "--pid", "--fork", "--mount-proc", "--kill-child", sys.executable, "-c", SCENE]
    done = subprocess.run(
        [*command, str(ROOT), str(TARGET), str(OTHER), str(NODE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "target": -9,
        "other": None,
        "code": 0,
        "said": "1 []\n",
        "errors": "",
    }


def test_what_took_the_number_of_an_ended_process_is_not_signalled() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as living:
        users._end(living.pid, TARGET)
        assert living.stdin is not None
        living.stdin.write(b"\n")
        living.stdin.close()
        assert living.wait() == 0


def test_a_process_that_stops_the_one_which_is_to_end_it_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if os.geteuid() != 0:
        is_missing("only root starts processes of other users: run the tests as root")
    monkeypatch.setattr(users, "_KILL", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)")
    monkeypatch.setattr(users, "_KILL_S", 0.2)
    code = f"import os, signal; os.setuid({TARGET}); print('x', flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        # One of the test before may still be ending.
        assert users.end_user(TARGET) >= 1
        assert process.wait() == -9
