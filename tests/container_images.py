"""An image for podman, made of what the machine has: this Python without its packages, a shell, and what they need."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

from tests.needed import is_missing

#: Its name, but for a tag that says which Python is in it.
NAME = "localhost/remora-test"
_PROGRAMS = ("sh", "bash", "cat", "ls", "sleep", "env", "id")
#: What of the standard library is large and not used.
_LEFT_OUT = {
    "site-packages",
    "test",
    "idlelib",
    "tkinter",
    "lib2to3",
    "ensurepip",
    "__pycache__",
    "turtledemo",
}


@functools.cache
def image() -> str:
    """The name of the image, which is made once and stays; the test is left out where there is no podman."""
    if shutil.which("podman") is None:
        is_missing(
            "there is no podman, in which images are run: make test-tools installs it, as root on Debian"
        )
    name = f"{NAME}:{hashlib.sha256(f'{sys.version}{_base()}3'.encode()).hexdigest()[:12]}"
    if subprocess.run(["podman", "image", "exists", name], check=False).returncode:
        _make(name)
    return name


def podman(*words: str) -> str:
    """What podman prints."""
    return subprocess.run(["podman", *words], check=True, capture_output=True, text=True).stdout.strip()


def containers() -> list[str]:
    """Names of all containers of workers."""
    return podman("ps", "--all", "--filter", "label=remora.worker", "--format", "{{.Names}}").split()


def container_of(pid: int) -> str:
    """The name of the container with this first process, as other tests may have some at the same time."""
    lines = podman("ps", "--all", "--format", "{{.Pid}} {{.Names}}").splitlines()
    (name,) = [line.partition(" ")[2] for line in lines if line.startswith(f"{pid} ")]
    return name


def _base() -> Path:
    return Path(os.path.realpath(sys.executable))


def _make(name: str) -> None:
    changes = ["ENV PATH=/own/bin:/usr/bin:/bin", "ENV FROM_IMAGE=yes", "ENV PYTHONPATH=/own/packages"]
    words = [word for change in changes for word in ("--change", change)]
    command = ["podman", "import", "--quiet", *words, "-", name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as importing:
        assert importing.stdin is not None
        with tarfile.open(fileobj=importing.stdin, mode="w|", dereference=True) as tar:
            _fill(tar)
        importing.stdin.close()
    assert importing.returncode == 0, "podman could not import the image"


def _fill(tar: tarfile.TarFile) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    programs = [
        _base(),
        *(Path(found) for name in _PROGRAMS if (found := shutil.which(name, path="/bin:/usr/bin"))),
    ]
    extensions = [*library.glob("lib-dynload/*.so")]
    # The C library loads it when a thread ends; no program names it, and every image with this C library has it.
    of_threads = Path("/lib").glob("*-linux-gnu/libgcc_s.so.1")
    for path in dict.fromkeys([*programs, *_libraries(*programs, *extensions), *of_threads]):
        tar.add(path, str(path))
    tar.add(
        library, str(library), filter=lambda one: None if set(Path(one.name).parts[-1:]) & _LEFT_OUT else one
    )
    for folder in ("tmp", "proc", "sys", "dev", "own/bin"):
        made = tarfile.TarInfo(folder)
        made.type, made.mode = tarfile.DIRTYPE, 0o1777
        tar.addfile(made)
    # Those beside it are what a virtual environment of the machine leads to.
    links = [
        Path("/own/bin/python"),
        Path("/own/bin/python3"),
        *(_base().with_name(one) for one in ("python", "python3")),
    ]
    for link in links:
        made = tarfile.TarInfo(str(link))
        made.type, made.linkname = tarfile.SYMTYPE, str(_base())
        tar.addfile(made)


def _libraries(*programs: Path) -> list[Path]:
    """Shared libraries that they load, by their paths."""
    said = subprocess.run(["ldd", *map(str, programs)], check=False, capture_output=True, text=True).stdout
    return [Path(path) for path in dict.fromkeys(re.findall(r"(?:=> |^\s+)(/\S+) \(0x", said, re.MULTILINE))]
