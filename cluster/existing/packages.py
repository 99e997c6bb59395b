"""Brings Remora's packages, by Ray's own means, to the nodes of a cluster whose Python need not have them."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from remora.ray_labels import BROUGHT_VARIABLE

#: What processes of Ray on a node import of ours.
PACKAGES = ("remora", "trainers", "cluster")
#: Not in there: what has been compiled, and in an installed wheel the packages of the service.
_LEFT_OUT = ("__pycache__", "_server")


@contextmanager
def brought(home: Path) -> Iterator[dict[str, Any]]:
    """The runtime environment for `ray.init` with our packages, which it uploads once for each release.

    The folder that it names is there within the context only.  Raises OSError.
    """
    with tempfile.TemporaryDirectory(dir=home, prefix=".packages-") as folder:
        for name in PACKAGES:
            shutil.copytree(_folder_of(name), Path(folder, name), ignore=shutil.ignore_patterns(*_LEFT_OUT))
        # One folder, as the packages find each other in it: Ray would put each of `py_modules` into one of its own.
        yield {"working_dir": folder, "env_vars": {BROUGHT_VARIABLE: "1"}}


def _folder_of(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None, f"{package} is a package of this process"
    assert spec.origin is not None, f"{package} is a package of this process"
    return Path(spec.origin).parent
