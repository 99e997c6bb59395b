"""The process that serves one mounted input of a node: `python -m trainers.inputs.mounts FOLDER`.

The folder has `input.json`, which says what is mounted, and gets `tree`, the mount, and `socket`, to which the
supervisors that use it connect.  The command returns when the tree is there, with 1 and a sentence when it cannot be;
the process goes on by itself, and ends when no supervisor uses it any more.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
import threading
from pathlib import Path

from remora.process_log import write_log
from trainers.input_source import InputFile
from trainers.inputs.mounts.blocks import BlockReader
from trainers.inputs.mounts.mountable import may_allow_others, unmount
from trainers.inputs.mounts.tree import tree_of
from trainers.inputs.mounts.users import Users
from trainers.job_storage import granted_storage
from trainers.storage import Storage
from trainers.storage_grants import Scope, is_brokered

_READY = b"ready\n"


def main(folder: Path) -> int:
    """Mount, and go on in a process of its own; returns when the tree is there or cannot be."""
    reading, writing = os.pipe()
    if os.fork():
        os.close(writing)
        with os.fdopen(reading, "rb") as said:
            answer = said.read(2000)
        if answer == _READY:
            return 0
        print(answer.decode(errors="replace").strip() or "the process of the mount ended", file=sys.stderr)
        return 1
    os.close(reading)
    os.setsid()
    try:
        _serve(folder, writing)
    except BaseException as error:
        logging.error("the mount ends: %r", error)  # noqa: TRY400
        _say(writing, f"{type(error).__name__}: {error}".encode()[:1000])
    finally:
        unmount(folder / "tree")
        shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _say(writing: int, text: bytes) -> None:
    try:
        os.write(writing, text)
        os.close(writing)
    except OSError:
        pass  # it has been said


def _serve(folder: Path, writing: int) -> None:
    import mfusepy

    from trainers.inputs.mounts.served_tree import ServedTree

    said = json.loads((folder / "input.json").read_text())
    users = Users(folder / "socket")
    scope = Scope(reads=tuple(said["reads"]))
    url = said["url"]
    storage = granted_storage(url, scope, users.ask) if is_brokered(url) else Storage(url, scope=scope)

    def fetch(file: InputFile, begin: int, end: int) -> bytes:
        return storage.read_range(file.stored, begin, end, file.tag)

    def serve_users() -> None:
        users.serve()
        unmount(folder / "tree")

    def is_mounted() -> None:
        # Nothing goes to the one who started this from now on.
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        for target, source in ((0, null), (1, log), (2, log)):
            os.dup2(source, target)
        threading.Thread(target=serve_users, name="users", daemon=True).start()
        _say(writing, _READY)

    files = [InputFile(*one) for one in said["files"]]
    reader = BlockReader(fetch, said["cache_bytes"])
    mfusepy.FUSE(
        ServedTree(tree_of(files), reader, is_mounted, users.say),
        str(folder / "tree"),
        foreground=True,
        nothreads=False,
        # What a script wants to write is refused by the kernel; what it has read stays in the kernel's cache.
        ro=True,
        kernel_cache=True,
        default_permissions=True,
        # Ends the mount with a process that was killed.
        auto_unmount=True,
        fsname="remora",
        subtype="remora",
        **({"allow_other": True} if may_allow_others() else {}),
    )
    reader.close()


if __name__ == "__main__":
    # Clients of storages write a page about each request.
    write_log("mounts", level=logging.WARNING, text=logging.Formatter("%(levelname)s %(message)s"))
    sys.exit(main(Path(sys.argv[1])))
