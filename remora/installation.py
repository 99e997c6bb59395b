"""Where the parts of this installation are, and how to install one that is missing.

The service's packages (`service`, `cluster`, `trainers`) are never importable by their own names in the environment
that they are installed in: a script's own folder of such a name must not meet them.  A wheel has them in a folder of
`remora`; processes of the service get that folder by PYTHONPATH.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import sys
from pathlib import Path
from urllib.parse import unquote, urlsplit

from remora.errors import ConfigurationError

_PACKAGE = Path(__file__).resolve().parent
#: The folder in a wheel, which deploy/wheel_contents.py fills.
_IN_WHEEL = "_server"
#: What only scripts need.
_FOR_TRAINING = ("numpy", "scikit-learn", "torch")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def server_root() -> Path | None:
    """The folder with the packages of the service, in this package or the checkout; None where neither has them."""
    for root in (_PACKAGE / _IN_WHEEL, _PACKAGE.parent):
        if (root / "service" / "up.py").is_file():
            return root
    return None


def server_command(module: str, *arguments: str, trains: bool = False) -> tuple[list[str], dict[str, str]]:
    """The argument list, and the variables, of a process that runs a module of the service.

    `trains` is true for one that also trains the examples.

    Raises ConfigurationError where this installation cannot run it, with what to install.
    """
    root = server_root()
    missing = [name for name in missing_packages("service") if trains or name not in _FOR_TRAINING]
    if root is None or missing:
        what = "has only the client" if root is None or "ray" in missing else f"lacks {', '.join(missing)}"
        raise ConfigurationError(
            f"this installation {what}; install the service with `{install_command('service')}`,"
            " or name a running service with --server or REMORA_SERVER"
        )
    path = os.pathsep.join(filter(None, (str(root), os.environ.get("PYTHONPATH"))))
    # -P: a folder of the user's that is named `service` must not be taken for ours.
    return [sys.executable, "-P", "-m", module, *arguments], {**os.environ, "PYTHONPATH": path}


def missing_packages(extra: str) -> list[str]:
    """Names of the packages of an extra, as `service`, that are not installed."""
    return [name for name in _packages_of(extra) if not _is_installed(name)]


def install_command(extra: str) -> str:
    """The command that installs an extra from where this installation came from: a checkout, a wheel, or an index."""
    source = _source()
    if source is None:
        requirement = f"remora[{extra}]"
    elif source.startswith("file://") and not source.endswith(".whl"):
        requirement = f"{unquote(urlsplit(source).path)}[{extra}]"
    else:
        requirement = f"remora[{extra}] @ {source}"
    return f"pip install {shlex.quote(requirement)}"


def _source() -> str | None:
    """The URL that this package was installed from (PEP 610); None for an index."""
    try:
        written = importlib.metadata.distribution("remora").read_text("direct_url.json")
        url = json.loads(written)["url"] if written else None
    except (importlib.metadata.PackageNotFoundError, ValueError, KeyError, TypeError):
        return None
    return url if isinstance(url, str) else None


def _packages_of(extra: str) -> list[str]:
    try:
        requirements = importlib.metadata.requires("remora") or []
    except importlib.metadata.PackageNotFoundError:
        return []
    marker = re.compile(rf"extra == ['\"]{re.escape(extra)}['\"]")
    found = (_NAME.match(line) for line in requirements if marker.search(line))
    return [match.group() for match in found if match is not None]


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True
