"""Gives each worker's command a virtual environment of its own, above that of its job or of the node.

It holds no packages at first.  What a command installs with `pip` lands in it, and is removed with the worker: nothing
that other jobs use, or that the service itself runs in, is written to.  Layout: PEP 405.
"""

from __future__ import annotations

import shlex
import site
import sys
from dataclasses import dataclass
from pathlib import Path

_PROGRAMS = ("python", "python3")
#: `pip` of the interpreter where it has that module, else the same commands of uv.
_PIP = """\
#!/bin/sh
folder=$(dirname "$0")
if "$folder/python" -c 'import pip' 2>/dev/null; then exec "$folder/python" -m pip "$@"; fi
export VIRTUAL_ENV="$(dirname "$folder")"
exec {uv} pip "$@"
"""


@dataclass(frozen=True, kw_only=True)
class WorkerPython:
    """The interpreter of one worker's command."""

    #: What `python` means to the command.
    python: Path
    #: The folder into which `pip install` writes.
    packages: Path
    #: The interpreter below it, whose packages it sees: that of the job's environment, or of the node.
    base: Path
    #: The folder of packages of the job's environment, if its interpreter is the node's own; None: it has another one,
    #: or there is no environment.
    layer: Path | None = None

    @property
    def path_folders(self) -> tuple[str, str]:
        """Folders of programs, the first one before the second: its own, and those that packages have installed."""
        return str(self.python.parent), str(self.base.parent)


def make_worker_python(folder: Path, base: Path | None) -> WorkerPython:
    """Make the environment in a new folder; `base` is the interpreter of the job's environment, None: this one.

    Raises OSError.
    """
    programs = folder / "bin"
    layer: Path | None = None
    node = Path(sys.executable)
    if base is None:
        base, version = node, f"{sys.version_info[0]}.{sys.version_info[1]}"
        layers = [path for path in site.getsitepackages() if Path(path).is_dir()]
    else:
        (below,) = base.parent.parent.glob("lib/python3.*/site-packages")
        version, layers = below.parent.name.removeprefix("python"), [str(below)]
        layer = below if _home_of(base) == _home_of(node) else None
    packages = folder / "lib" / f"python{version}" / "site-packages"
    packages.mkdir(parents=True)
    programs.mkdir()
    home = _home_of(base)
    interpreter = next(path for path in (home / f"python{version}", home / "python3", base) if path.exists())
    for name in (*_PROGRAMS, f"python{version}"):
        (programs / name).symlink_to(interpreter)
    settings = {"home": home, "include-system-site-packages": "false", "version": version}
    (folder / "pyvenv.cfg").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))
    # addsitedir follows the .pth files there, which a bare path in a .pth file does not.
    lines = "".join(f"import site; site.addsitedir({layer!r})\n" for layer in layers)
    (packages / "remora-layers.pth").write_text(lines)
    write_pip(programs)
    return WorkerPython(python=programs / "python", packages=packages, base=base, layer=layer)


def write_pip(programs: Path) -> None:
    """Give an environment a `pip` that installs into it, unless it has one.  Raises OSError."""
    uv = Path(sys.executable).with_name("uv")
    for name in ("pip", "pip3"):
        if not (programs / name).exists():
            (programs / name).write_text(_PIP.format(uv=shlex.quote(str(uv)) if uv.exists() else "uv"))
            (programs / name).chmod(0o755)


def _home_of(python: Path) -> Path:
    """The folder of the interpreter that a virtual environment was made from; of another one its own folder."""
    settings = python.parent.parent / "pyvenv.cfg"
    if settings.is_file():
        for line in settings.read_text().splitlines():
            name, _, value = line.partition("=")
            if name.strip() == "home":
                return Path(value.strip())
    return python.resolve().parent
