"""Has podman fetch the image of a job onto its node, once for all workers that start there at the same time."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from remora.private_files import open_lock
from remora.spec.quantities import format_size
from trainers.containers.podman import run_podman
from trainers.environments.commands import EnvironmentFailed, TimeLimit
from trainers.node_folders import make_once, work_root

#: Seconds that a pull may take.
PULL_LIMIT_S = 3600.0
#: Seconds that a question to podman about its images may take.
_ASK_S = 120.0
_ID = re.compile(r"(?:sha256:)?[0-9a-f]{12,64}")
_LOCAL = "localhost/"


@dataclass(frozen=True, kw_only=True)
class NodeImage:
    """An image that this node has."""

    #: 64 hexadecimal digits: the digest of its configuration, which names all of its layers.
    id: str
    size_bytes: int
    #: Seconds that its pull took; 0 where nothing was pulled.
    pull_s: float = 0.0


def node_image(
    name: str,
    say: Callable[[str], None],
    show: Callable[[str], None] = lambda _: None,
    stop: threading.Event | None = None,
    root: Path | None = None,
) -> NodeImage:
    """The image of this name, which is pulled unless its name says that it can only be here, or which one it is.

    `say` is called with lines for the job's log, and `show` with how far a pull is, which ends when `stop` is set.
    Where the registry does not give an image that the node has already, that one is used.
    Raises EnvironmentFailed, OSError.
    """
    stop = stop or threading.Event()
    root = root or work_root() / "images"
    root.mkdir(exist_ok=True, mode=0o700)
    found: list[NodeImage] = []
    with open_lock(root / f"{hashlib.sha256(name.encode()).hexdigest()[:32]}.lock") as lock:
        make_once(
            lock,
            lambda: bool(found),
            lambda: found.append(_find(name, say, show, stop)),
            TimeLimit(stop).check,
        )
    return found[0]


def _find(
    name: str, say: Callable[[str], None], show: Callable[[str], None], stop: threading.Event
) -> NodeImage:
    here = _known(name, stop)
    is_only_here = name.startswith(_LOCAL) or _ID.fullmatch(name) is not None
    if here is None and is_only_here:
        raise EnvironmentFailed(
            f"this node has no image {name}; build it there, or push it to a registry and write its name with that"
        )
    # A name with a digest is always the same image.
    if here is not None and (is_only_here or "@sha256:" in name):
        return here
    began = time.monotonic()
    try:
        _pull(name, say, show, stop)
    except EnvironmentFailed as error:
        if here is None or stop.is_set():
            raise
        say(f"{error}; the image of this name that the node has is used")
        return here
    pulled = _known(name, stop)
    if pulled is None:
        raise EnvironmentFailed(f"podman has pulled {name} and does not find it")
    pull_s = time.monotonic() - began
    if here == pulled:
        return here
    say(f"the image is here after {pull_s:.1f} s: {pulled.id[:12]}, {format_size(pulled.size_bytes)}")
    return NodeImage(id=pulled.id, size_bytes=pulled.size_bytes, pull_s=pull_s)


def _pull(name: str, say: Callable[[str], None], show: Callable[[str], None], stop: threading.Event) -> None:
    say(f"pulling the image {name}")
    limit = TimeLimit(
        stop,
        time.monotonic() + PULL_LIMIT_S,
        f"the image was not pulled within {PULL_LIMIT_S:g} s; use a smaller one",
    )
    blobs: set[str] = set()

    def take(line: str) -> None:
        if line.startswith("Copying blob "):
            blobs.add(line.split()[2])
            show(f"{name}: {len(blobs)} layers")
        elif line.startswith(("Copying config", "Writing manifest")):
            show(f"{name}: {len(blobs)} layers, writing them")

    # With its transport: otherwise podman takes some names for those of files.
    run_podman("podman could not pull it", ["pull", f"docker://{name}"], limit, take, with_errors=True)


def _known(name: str, stop: threading.Event) -> NodeImage | None:
    """The image of this name that the node has; None: it has none."""
    limit = TimeLimit(stop, time.monotonic() + _ASK_S, "podman does not answer")
    words = ["image", "inspect", "--format", "{{.Id}} {{.Size}}", "--", name]
    try:
        lines = run_podman("podman cannot say whether it has the image", words, limit)
    except EnvironmentFailed as error:
        # Its exit code is the same for every failure.
        if str(error).endswith("image not known"):
            return None
        raise
    identifier, _, size = lines[-1].partition(" ")
    return NodeImage(id=identifier.removeprefix("sha256:"), size_bytes=int(size))
