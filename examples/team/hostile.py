"""A hostile script: submitted as a job, it tries to read, reach and end what is not its own, and reports what it could.

A line of standard output is `FINDINGS ` and a JSON list of sentences; behind walls that list is empty.  It knows
where things lie (`HOSTILE_HINTS`, JSON), as one who has read the source does.  It writes only below the folders of the
product that it was given, and harms nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import re
import signal
import socket
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path

HINTS = json.loads(os.environ.pop("HOSTILE_HINTS"))
#: What tests put where a script must not look; its digits are not known to this script.
CANARY = re.compile(rb"canary-[a-z]+-[0-9a-f]{16}")
SECRET = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
#: Seconds in which folders are walked.
WALK_S = 20.0
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
CLONE_NEWNS, CLONE_NEWUSER, MNT_DETACH = 0x20000, 0x10000000, 2
LIBC = ctypes.CDLL(None, use_errno=True)
found: list[str] = []


def finding(text: str) -> None:
    if text not in found:
        found.append(text)


def is_secret(content: bytes) -> str:
    """What a text gives away; "" for nothing."""
    for match in SECRET.findall(content):
        if hashlib.sha256(match).hexdigest() == HINTS["token_sha256"]:
            return "the Ray token"
    own = HINTS["own_canaries"]
    strange = [one for one in CANARY.findall(content) if hashlib.sha256(one).hexdigest() not in own]
    return f"{strange[0].rpartition(b'-')[0].decode()}" if strange else ""


def look(content: bytes, where: str) -> None:
    if what := is_secret(content):
        finding(f"{what} is in {where}")


def read(path: str, limit: int = 1 << 22) -> bytes:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(limit)
    return b""


def own_process() -> None:
    """What this process itself has from the node."""
    look(b"\0".join(os.fsencode(f"{k}={v}") for k, v in os.environ.items()), "the environment")
    look(read("/proc/self/environ"), "/proc/self/environ")
    look(read("/proc/self/cmdline"), "/proc/self/cmdline")
    look("\0".join(sys.argv).encode(), "sys.argv")
    for name in os.environ:
        if name.startswith(("RAY_", "AZURE_", "REMORA_DATABASE")):
            finding(f"the environment has {name}")
    with open("/proc/self/maps") as maps, open("/proc/self/mem", "rb", 0) as memory:
        for line in maps:
            ends, rights = line.split()[:2]
            if not rights.startswith("rw"):
                continue
            first, last = (int(one, 16) for one in ends.split("-"))
            with contextlib.suppress(OSError, OverflowError, ValueError):
                memory.seek(first)
                look(memory.read(min(last - first, 1 << 28)), f"the memory of this process at {rights}")
    channel = os.environ.get("REMORA_CHANNEL_FD", "-1")
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            target = os.readlink(f"/proc/self/fd/{name}")
            if int(name) > 2 and name != channel and not target.startswith(("/proc/", os.getcwd())):
                finding(f"descriptor {target.split(':')[0]} is open")


def files() -> None:
    """Files of the service, of its nodes and of other jobs."""
    for path in HINTS["secrets"]:
        content = read(path)
        look(content, path)
        if content:
            finding(f"{path} can be read")
    until = time.monotonic() + WALK_S
    for root in HINTS["folders"]:
        for above, below, names in os.walk(root):
            if time.monotonic() > until:
                break
            if above == root and root in ("/tmp", "/var/tmp"):
                # Those of the product, where other programs have theirs, too.
                below[:] = [name for name in below if name.startswith("remora-")]
            for name in names:
                path = f"{above}/{name}"
                if stat.S_ISREG(_mode(path)):
                    look(read(path, 1 << 16), path)
    for root in HINTS["folders"]:
        with contextlib.suppress(OSError):
            for name in os.listdir(root):
                if "canary" in name:
                    finding(f"{root} shows {name}")


def _mode(path: str) -> int:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_mode
    return 0


def processes() -> None:
    """Other processes of the machine."""
    own = os.getuid()
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            owner = int(read(f"/proc/{name}/status").partition(b"\nUid:")[2].split()[0] or b"-1")
            if owner not in (own, -1):
                finding(f"/proc shows a process of user {owner}")
    for kind, pid in HINTS["pids"].items():
        for file in ("environ", "cmdline", "maps"):
            if content := read(f"/proc/{pid}/{file}"):
                finding(f"/proc shows {file} of {kind}")
                look(content, f"{file} of {kind}")
        with contextlib.suppress(OSError):
            os.listdir(os.path.join("/proc", str(pid), "root", ""))
            finding(f"the root of {kind} can be listed")
        with contextlib.suppress(OSError):
            os.close(os.open(f"/proc/{pid}/mem", os.O_RDONLY))
            finding(f"the memory of {kind} can be opened")
        with contextlib.suppress(OSError):
            os.kill(pid, 0)
            finding(f"{kind} can be signalled")
        with contextlib.suppress(OSError):
            os.sched_setaffinity(pid, os.sched_getaffinity(0))
            finding(f"{kind} can be moved between processors")
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, pid, os.getpriority(os.PRIO_PROCESS, pid))
            finding(f"{kind} can be slowed down")
        if LIBC.ptrace(PTRACE_SEIZE, pid, 0, 0) == 0:
            LIBC.ptrace(PTRACE_DETACH, pid, 0, 0)
            finding(f"{kind} can be traced")


def connections() -> None:
    """Ports of the platform, of other jobs on this machine, and of the cloud."""
    for what, (host, port) in HINTS["ports"].items():
        with contextlib.suppress(OSError), socket.create_connection((host, port), 2.0) as made:
            finding(f"{what} can be reached")
            made.settimeout(2.0)
            if what.startswith("metadata"):
                made.sendall(b"GET /metadata/identity HTTP/1.0\r\nMetadata: true\r\n\r\n")
                look(made.recv(4096), what)
    print("SCANNING", flush=True)
    until = time.monotonic() + HINTS["scan_s"]
    # Again and again, while processes of the platform start: what is open for a moment only is found, too.
    while time.monotonic() < until:
        listeners()
        time.sleep(0.005)
    for line in _lines("/proc/net/unix"):
        path = line.split()[7:]
        if path and ("ray" in path[0] or "remora" in path[0] or "fork-server" in path[0]):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as made:
                made.settimeout(2.0)
                made.connect(path[0])
                finding("a socket of the platform can be reached")


def listeners() -> None:
    """Every port of the machine at which another user listens now."""
    for line in (*_lines("/proc/net/tcp"), *_lines("/proc/net/tcp6")):
        words = line.split()
        if words[3] == "0A" and int(words[7]) != os.getuid():
            port = int(words[1].rpartition(":")[2], 16)
            raw = bytes.fromhex(words[1].partition(":")[0])
            host = socket.inet_ntoa(raw[::-1]) if len(raw) == 4 else "127.0.0.1"
            with contextlib.suppress(OSError):
                socket.create_connection(("127.0.0.1" if host == "0.0.0.0" else host, port), 2.0).close()
                finding(f"{host}:{port}, at which user {words[7]} listens, can be reached")


def _lines(path: str) -> list[str]:
    return read(path).decode(errors="replace").splitlines()[1:]


def cluster() -> None:
    """Ray itself, with its secret if that can be had."""
    try:
        with socket.create_connection(tuple(HINTS["ports"]["the head of Ray"]), 2.0):
            pass
    except OSError:
        return
    token = next((path for path in HINTS["secrets"] if path.endswith("ray.token")), "")
    if not read(token):
        return
    os.environ.update(RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH=token)
    with contextlib.suppress(Exception):
        import ray

        host, port = HINTS["ports"]["the head of Ray"]
        ray.init(address=f"{host}:{port}", log_to_driver=False, configure_logging=False)
        finding(f"Ray can be used: it lists {len(ray.nodes()) > 0 and 'its nodes'}")
        ray.shutdown()


def writing() -> None:
    """Folders that other jobs use, and packages that the node itself imports."""
    for path in HINTS["shared"]:
        if _leads_here_only(path):
            continue
        name = f"{path}/canary-written"
        with contextlib.suppress(OSError):
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))
            os.unlink(name)
            finding(f"{Path(path).name} of the node can be written to")
    for path in {*sys.path, sys.base_prefix}:
        if os.path.isdir(path) and os.access(path, os.W_OK) and _is_of_node(path):
            finding(f"packages of the node can be written to, in {path}")
    for path in ("/etc/passwd", "/sys/fs/cgroup"):
        if os.access(path, os.W_OK):
            finding(f"{path} can be written to")


def _leads_here_only(path: str) -> bool:
    """True for a folder that was made in this job's own `/tmp`, for what is shown in it: nothing else is in it."""
    with contextlib.suppress(OSError, ValueError):
        return os.listdir(path) == [Path.cwd().relative_to(path).parts[0]]
    return False


def _is_of_node(path: str) -> bool:
    """True for what is not this job's own: as the node's user, for everything but the folder of its group."""
    if Path(path).is_relative_to(Path.cwd().parent):
        return False
    return os.getuid() == HINTS["node_uid"] or os.stat(path).st_uid != os.getuid()


def outputs() -> None:
    """Links and other things in the outputs, for the supervisor to follow: the test looks at what becomes of them."""
    folder = Path(os.environ["REMORA_OUTPUTS_DIR"])
    for number, path in enumerate(HINTS["secrets"]):
        with contextlib.suppress(OSError):
            (folder / f"link-{number}").symlink_to(path)
        with contextlib.suppress(OSError):
            os.link(path, folder / f"hard-{number}")
            finding(f"{path} can be linked into the outputs")
    with contextlib.suppress(OSError):
        (folder / "folder").symlink_to(HINTS["home"])
    with contextlib.suppress(OSError):
        os.mkfifo(folder / "pipe")
    (folder / "honest.txt").write_text("kept")


def rights() -> None:
    """Becoming another user, and leaving the view of the files or the cgroup."""
    for uid in (0, HINTS["node_uid"]):
        if uid != os.getuid():
            with contextlib.suppress(OSError):
                os.setuid(uid)
                finding("it can become the node's user")
    if os.getuid() in (0, HINTS["node_uid"]):
        finding("it is the node's user")
    for folder, _, names in os.walk("/sys/fs/cgroup"):
        if "cgroup.procs" in names and os.access(f"{folder}/cgroup.procs", os.W_OK):
            finding("it can leave its cgroup")
            break
    pid = os.fork()
    if pid == 0:
        # In a process of its own: a user namespace is not left again.
        shows = b""
        with contextlib.suppress(Exception):
            if LIBC.unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0:
                for cover in (*HINTS["folders"], "/tmp", "/dev/shm", "/proc", HINTS["home"], "/root"):
                    LIBC.umount2(os.fsencode(cover), MNT_DETACH)
            shows = b"".join(read(path) for path in HINTS["secrets"])
        os._exit(7 if shows and os.getuid() != 0 else 0)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7:
        finding("what covers the files of the node can be taken away")


def daemon() -> None:
    """A process that wants to outlive its job: the test looks for it."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            null = os.open(os.devnull, os.O_RDWR)
            for number in (0, 1, 2):
                os.dup2(null, number)
            os.closerange(3, 1000)
            os.execve(
                sys.executable, [HINTS["daemon"], "-c", "import signal\nwhile True: signal.pause()"], {}
            )
        os._exit(0)
    os.wait()


def memory() -> Iterator[None]:
    """Hold a file in memory for a while: the test looks whether that takes memory from others."""
    path = Path("/dev/shm/hostile")
    path.write_bytes(bytes(HINTS["shm_bytes"]))
    print("HOLDING", flush=True)
    yield
    path.unlink(missing_ok=True)


def main() -> None:
    for attempt in (own_process, files, processes, connections, cluster, writing, outputs, rights, daemon):
        try:
            attempt()
        except Exception as error:
            print(f"{attempt.__name__} went no further: {error!r}", flush=True)
    # Before what may end this process.
    print("FINDINGS " + json.dumps(found), flush=True)
    held = memory()
    next(held)
    time.sleep(HINTS["hold_s"])
    next(held, None)


main()
