"""What the image of a node is made of: a part of this checkout, and the steps of deploy/node/image-steps.json."""

from __future__ import annotations

import functools
import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
#: Files and folders that deploy/node/make-image copies into the image, and what installs them there.
PARTS = (
    "LICENSE",
    "README.md",
    "cluster",
    "deploy/make-venv",
    "deploy/node",
    "deploy/wheel_contents.py",
    "pyproject.toml",
    "remora",
    "requirements",
    "service",
    "trainers",
)
STEPS = ROOT / "deploy/node/image-steps.json"
#: Azure Image Builder brings no larger file to its machine.
MOST_BYTES = 20 * 2**20


class SourceTooLarge(Exception):
    """The archive is larger than what Azure Image Builder brings to its machine; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class ImageSource:
    """Files, packed without compression, and what is done with them, lines of a shell."""

    packed: bytes
    steps: tuple[str, ...]
    #: Of what is in the archive and of the steps, however it was compressed: which image becomes of it.
    digest: str

    @functools.cached_property
    def archive(self) -> bytes:
        """The files as they are uploaded.  Raises SourceTooLarge."""
        archive = gzip.compress(self.packed, compresslevel=6, mtime=0)
        if len(archive) > MOST_BYTES:
            raise SourceTooLarge(
                f"what the image is made of has {len(archive) >> 20} MiB, and Azure Image Builder takes"
                f" {MOST_BYTES >> 20}: remove large files from this checkout, or use deploy/node/image.pkr.hcl"
            )
        return archive

    @property
    def archive_sha256(self) -> str:
        """Digest of the archive as it is uploaded.  Raises SourceTooLarge."""
        return hashlib.sha256(self.archive).hexdigest()


def source_of(root: Path = ROOT) -> ImageSource:
    """The source of a checkout; the same files make the same digest on each machine.

    Raises OSError.
    """
    steps = tuple(json.loads(STEPS.read_text()))
    packed = _packed(root)
    digest = hashlib.sha256(packed + json.dumps(steps).encode()).hexdigest()
    return ImageSource(packed=packed, steps=steps, digest=digest)


def _packed(root: Path) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for path in _files(root):
            content = path.read_bytes()
            entry = tarfile.TarInfo(path.relative_to(root).as_posix())
            entry.size, entry.mode = len(content), 0o755 if path.stat().st_mode & 0o100 else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def _files(root: Path) -> Iterator[Path]:
    for part in PARTS:
        whole = root / part
        whole.stat()
        inside = sorted(whole.rglob("*")) if whole.is_dir() else [whole]
        for path in inside:
            names = path.relative_to(root).parts
            if path.is_file() and not any(one.startswith(".") or one == "__pycache__" for one in names):
                yield path
