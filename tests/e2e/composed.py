"""Runs the services of deploy/containers/compose.yaml with podman, in an image or with this machine's files.

No registry is asked.  Without an image no package is installed: root's home is closed to the user of the containers, so
that this interpreter is mounted into them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tests.architecture.repository import ROOT

#: The services, as the file says.
SERVICES: Mapping[str, Any] = yaml.safe_load((ROOT / "deploy/containers/compose.yaml").read_text())[
    "services"
]
_BASE = Path(sys.base_prefix).resolve()


class Composed:
    """Containers of one project, on the network of this machine."""

    def __init__(self, volumes: Path, settings: Mapping[str, str], image: str = "") -> None:
        """`volumes` has a folder for each volume; `settings` are instead of those in the file of the same names.

        An empty one is left out.  Without `image` the containers have the files of this machine.
        """
        self._image = image
        self._volumes = volumes
        self._settings = settings
        self._prefix = f"remora-test-{uuid.uuid4().hex[:8]}"
        self._names: list[str] = []
        # As the image has them.
        for name, mode in (("state", 0o700), ("sockets", 0o1777)):
            (volumes / name).mkdir(parents=True)
            os.chown(volumes / name, 10001, 10001)
            (volumes / name).chmod(mode)
        #: A folder above this interpreter that others may not enter: containers have another one in its place.
        self._closed = next((one for one in reversed(_BASE.parents) if not one.stat().st_mode & 0o001), None)
        if self._closed is not None:
            (volumes / "closed" / _BASE.relative_to(self._closed)).mkdir(parents=True)

    def run(self, service: str, *command: str) -> str:
        """Run a container to its end, with another command if that is given; what it prints.

        Raises CalledProcessError.
        """
        words = [*self._arguments(service), *self._entry(command or SERVICES[service]["command"])]
        return _podman("run", "--rm", *words)

    def start(self, service: str, number: int = 1) -> str:
        """Start a container, which the engine starts again when it ends; its name."""
        name = f"{self._prefix}-{service}-{number}"
        self._names.append(name)
        again = f"--restart={SERVICES[service]['restart']}"
        words = [*self._arguments(service), *self._entry(SERVICES[service]["command"])]
        _podman("run", "--detach", f"--name={name}", again, *words)
        return name

    def is_healthy(self, service: str, number: int = 1) -> bool:
        """Whether its health command succeeds in it."""
        name = f"{self._prefix}-{service}-{number}"
        command = self._entry(SERVICES[service]["healthcheck"]["test"][2:], "remora-server")
        return not subprocess.run(
            ["podman", "exec", name, *command], capture_output=True, check=False
        ).returncode

    def kill(self, name: str) -> int:
        """End a container as a crash of its first process does; the process id that it had on this machine."""
        pid = self.pid_of(name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def pid_of(self, name: str) -> int:
        """Id of its first process on this machine, 0 while it has none."""
        return int(_podman("inspect", "--format={{.State.Pid}}", name))

    def close(self) -> str:
        """Remove all containers; what they printed."""
        said = []
        for name in self._names:
            logs = subprocess.run(
                ["podman", "logs", "--tail=40", name], capture_output=True, text=True, check=False
            )
            said.append(f"--- {name}\n{logs.stdout}{logs.stderr}")
        # Those that join another one go first.
        for name in reversed(self._names):
            _podman("rm", "--force", "--depend", "--time=0", "--ignore", name)
        return "\n".join(said)

    def _arguments(self, service: str) -> list[str]:
        asked = SERVICES[service]
        words = ["--network=host", f"--user={asked['user']}", "--security-opt=label=disable"]
        words += ["--read-only", "--read-only-tmpfs=false"] * asked["read_only"]
        words += [f"--cap-drop={one}" for one in asked["cap_drop"]]
        words += [f"--security-opt={one.removesuffix(':true')}" for one in asked["security_opt"]]
        words += ["--ulimit=nofile=20000:20000", "--ulimit=nproc=20000:20000"]
        for kind in ("pid", "ipc"):
            joined = asked.get(kind, "").removeprefix("service:")
            words += [f"--{kind}=container:{self._prefix}-{joined}-1"] if joined in SERVICES else []
        if asked.get("ipc") == "shareable":
            words += ["--ipc=shareable", "--shm-size=1g"]
        words += [f"--volume={self._volumes}/{one}" for one in asked["volumes"]]
        words += [f"--tmpfs={one}:notmpcopyup" for one in asked.get("tmpfs", [])]
        own = {**asked["environment"], **self._settings}
        if self._image:
            words += [f"--env={name}={value}" for name, value in own.items() if value]
            return [*words, self._image]
        if self._closed is not None:
            words += [f"--volume={self._volumes}/closed:{self._closed}:ro", f"--volume={_BASE}:{_BASE}:ro"]
        own |= {"PYTHONPATH": str(ROOT), "HOME": "/tmp"}
        words += [f"--env={name}={value}" for name, value in own.items() if value]
        return [*words, "--rootfs", "/:O"]

    def _entry(self, command: Iterable[str], *program: str) -> list[str]:
        """A command as it is given to a container; the image has a program that begins it, but for `exec`."""
        if self._image:
            return [*program, *command]
        return [sys.executable, "-P", "-m", "service.installation", *command]


def _podman(*words: str) -> str:
    command = ["podman", "--runtime=runc", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(words[:3])}: {done.stdout}{done.stderr}"
    return done.stdout.strip()
