"""Has an input mounted on this node: one process serves it to all supervisors that use it, and ends with the last."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import trainers
from remora.private_files import open_lock
from trainers.granted_blobs import Ask
from trainers.input_source import InputFile
from trainers.inputs.mounts import messages
from trainers.inputs.mounts.addresses import socket_address
from trainers.inputs.mounts.messages import ConnectionEnded
from trainers.inputs.mounts.mountable import unmount, why_no_mounts
from trainers.node_folders import work_root

#: Seconds until the lock is tried again, and until a tree is there.
_LOOK_S, _STARTED_S = 0.05, 60.0
_LOCK, _TREE = "mounts.lock", "tree"
#: What a mount's process sends to each new user, and seconds until it does.
_WELCOME, _WELCOMED_S = json.dumps(messages.WELCOME).encode() + b"\n", 30.0


class NotMounted(Exception):
    """An input cannot be mounted here; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class MountedInput:
    """What is mounted."""

    #: Of the input in its job, for people.
    name: str
    #: Equal for inputs that have the same files in the same state.
    digest: str
    #: URL of the storage, and the name below which its files are; "": all of it.
    url: str
    base: str
    files: Sequence[InputFile]
    #: Bytes that are kept in memory of what was read.
    cache_bytes: int


@contextlib.contextmanager
def mounted(
    one: MountedInput,
    ask: Ask,
    say: Callable[[str], None],
    check: Callable[[], None] = lambda: None,
    root: Path | None = None,
) -> Iterator[Path]:
    """The folder with the input's files, which are fetched as they are read.

    `ask` is used for grants as long as the context is open, `say` for lines for the job's log; `check` is called while
    this waits, and may raise.
    Raises NotMounted and OSError.
    """
    root = root or work_root() / "mounts"
    why = why_no_mounts()
    if why is not None:
        raise NotMounted(f"this node cannot mount it, as {why}; install fuse3, or write mode: download")
    root.mkdir(mode=0o700, exist_ok=True)
    with _locked(root, check):
        _sweep(root)
        began = time.monotonic()
        connected = _find(root, one.digest)
        if connected is None:
            connected = _start(root, one)
            say(
                f"input {one.name}: {len(one.files)} files are mounted after {time.monotonic() - began:.1f} s"
            )
    folder, connection = connected
    closing = threading.Event()

    def serve() -> None:
        with contextlib.suppress(ConnectionEnded):
            _answer(connection, ask, say, one.name)
        if not closing.is_set():
            say(f"input {one.name}: the process of its mount has ended, and reads of it fail")

    threading.Thread(target=serve, name=f"mount-{one.name}", daemon=True).start()
    try:
        yield folder / _TREE
    finally:
        closing.set()
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()


def sweep_mounts(root: Path | None = None) -> list[str]:
    """End mounts whose process is dead, and remove what they left; returns the names of their folders."""
    root = root or work_root() / "mounts"
    if not root.is_dir():
        return []
    try:
        with open_lock(root / _LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return _sweep(root)
    except OSError:
        # One is being mounted right now, which sweeps as well.
        return []


@contextlib.contextmanager
def _locked(root: Path, check: Callable[[], None]) -> Iterator[None]:
    with open_lock(root / _LOCK) as lock:
        while True:
            check()
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(_LOOK_S)
                continue
            yield
            return


def _sweep(root: Path) -> list[str]:
    swept = []
    for folder in sorted(one for one in root.iterdir() if one.is_dir()):
        try:
            connection = _connect(folder)
        except TimeoutError:
            # It lives, and is slow.
            continue
        if connection is not None:
            connection.close()
            continue
        unmount(folder / _TREE)
        shutil.rmtree(folder, ignore_errors=True)
        swept.append(folder.name)
    return swept


def _find(root: Path, digest: str) -> tuple[Path, socket.socket] | None:
    for folder in sorted(root.glob(f"{digest}-*")):
        with contextlib.suppress(TimeoutError):
            connection = _connect(folder)
            if connection is not None:
                return folder, connection
    return None


def _connect(folder: Path) -> socket.socket | None:
    """A connection to the process of a mount, of which this is a user now; None when it is dead, or takes no more.

    It may end without having accepted this one: only who is welcomed is one of its users.  Raises TimeoutError.
    """
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(_WELCOMED_S)
        with socket_address(folder) as address:
            connection.connect(address)
        welcome = connection.recv(len(_WELCOME), socket.MSG_WAITALL)
        connection.settimeout(None)
    except TimeoutError:
        connection.close()
        raise
    except OSError:
        welcome = b""
    if welcome == _WELCOME:
        return connection
    connection.close()
    return None


def _start(root: Path, one: MountedInput) -> tuple[Path, socket.socket]:
    folder = Path(tempfile.mkdtemp(dir=root, prefix=f"{one.digest}-"))
    (folder / _TREE).mkdir()
    said = {
        "url": one.url,
        "reads": [one.base],
        "files": [astuple(file) for file in one.files],
        "cache_bytes": one.cache_bytes,
    }
    (folder / "input.json").write_text(json.dumps(said))
    # A descriptor that the process of the mount keeps would make who waits for its end wait for the mount's.
    with (folder / "start.log").open("w+b") as output:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "trainers.inputs.mounts", str(folder)],
            env={**os.environ, "PYTHONPATH": str(Path(trainers.__file__).parents[1])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
            timeout=_STARTED_S,
            check=False,
        )
        output.seek(0)
        why = output.read(4000).decode(errors="replace").strip()
    connection = None
    with contextlib.suppress(TimeoutError):
        connection = _connect(folder) if done.returncode == 0 else None
    if connection is None:
        unmount(folder / _TREE)
        shutil.rmtree(folder, ignore_errors=True)
        said_why = "; ".join(why.splitlines())[-500:] or "no reason is given"
        raise NotMounted(f"it cannot be mounted on this node: {said_why}")
    return folder, connection


def _answer(connection: socket.socket, ask: Ask, say: Callable[[str], None], name: str) -> None:
    """Answer what the process of the mount asks.  Raises ConnectionEnded when it is gone."""
    with connection.makefile("rwb") as stream:
        while True:
            message = messages.receive(stream)
            if message.get("type") == "say":
                say(f"input {name}: {str(message.get('text'))[:1000]}")
            else:
                messages.send(stream, messages.answer_message(ask(messages.request_of(message))))
