"""Where the local cluster keeps its files: records and logs in the home folder, Ray's sockets in a short one.

Ray puts unix sockets below its temporary folder, and a socket's path may have 107 bytes only, so that folder cannot
lie in a home of any length.  There is one of them per cluster, readable by its owner only.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cluster.local.mounts import unmount_below
from remora import cgroups

#: Bytes that Ray's longest socket path needs below the temporary folder of one node.
_SOCKET_SUFFIX_BYTES = 72
#: Bytes that a unix socket's path may have.
_SOCKET_PATH_BYTES = 107


@dataclass(frozen=True)
class ClusterFolders:
    """Paths of one local cluster; building it touches nothing."""

    #: The service's home, absolute.
    home: Path

    @property
    def nodes(self) -> Path:
        """Records and logs of the nodes: `<node_id>.json`, `<node_id>.log`."""
        return self.home / "nodes"

    @property
    def logs(self) -> Path:
        """Logs of the head and of the service's processes."""
        return self.home / "logs"

    @property
    def token(self) -> Path:
        """The secret that every process of the Ray cluster shows to the others."""
        return self.home / "ray.token"

    @property
    def joined(self) -> Path:
        """How a Ray cluster that Remora did not start is reached; absent where it started one."""
        return self.home / "joined.json"

    @property
    def joined_token(self) -> Path:
        """The secret of that cluster, where a variable gave it."""
        return self.home / "joined.token"

    @property
    def tls(self) -> Path:
        """The authority of the cluster's certificates and the service's own; absent where Ray uses no TLS."""
        return self.home / "ray-tls"

    @property
    def authority(self) -> Path:
        """The authority's certificate and key."""
        return self.tls / "authority.pem"

    def tls_of(self, machine_temporary: Path) -> Path:
        """The certificates of a machine, which go with its temporary folder."""
        return machine_temporary / "tls"

    @property
    def address(self) -> Path:
        """The head's address as `host:port`, for processes that join or connect."""
        return self.home / "ray.address"

    @property
    def head(self) -> Path:
        """Record of the head."""
        return self.home / "head.json"

    @property
    def head_id(self) -> str:
        """Name of the head of this home; always the same, so that it is found without any record."""
        return f"head_{hashlib.sha256(str(self.home).encode()).hexdigest()[:16]}"

    def mark_of(self, machine_id: str) -> str:
        """What every process of this machine carries in its environment; differs between homes."""
        return f"{machine_id}@{self.home}"

    def cgroup_of(self, machine_id: str) -> Path | None:
        """The cgroup in which all of this machine runs; None where this process can make none."""
        root = cgroups.walls().folder
        return None if root is None else root / f"{self._cgroup_prefix}{_short(machine_id)}"

    def cgroups(self) -> tuple[Path, ...]:
        """The cgroups of this home's machines that there are now."""
        root = cgroups.walls().folder
        return () if root is None else tuple(sorted(root.glob(f"{self._cgroup_prefix}*")))

    @property
    def _cgroup_prefix(self) -> str:
        return f"remora-{_short(str(self.home))}-"

    @property
    def faults(self) -> Path:
        """The faults to inject into the next nodes; the file exists only in rehearsals."""
        return self.home / "faults.json"

    @property
    def lock(self) -> Path:
        """The lock that is held while a machine is made or forgotten."""
        return self.home / "cluster.lock"

    @property
    def temporary(self) -> Path:
        """The cluster's folder for Ray's sockets and logs; it exists after `make_temporary`."""
        return _temporary_root() / f"remora-{os.getuid()}-{_short(str(self.home))}"

    def temporary_of(self, name: str) -> Path:
        """Ray's temporary folder of the head or of one node."""
        return self.temporary / _short(name)

    def make(self, *, with_group: bool = False) -> None:
        """Make the folders; private to their owner where they hold secrets or sockets.

        `with_group`: who is in the group of this process reaches the sockets, for all files that it makes from now on.
        Raises PermissionError when another user made the temporary folder first.
        """
        self.home.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.nodes.mkdir(mode=0o700, exist_ok=True)
        self.logs.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.temporary.mkdir(mode=0o750 if with_group else 0o700)
        if with_group:
            os.umask(0o007)
        status = self.temporary.lstat()
        if (
            status.st_uid != os.getuid()
            or status.st_mode & (0o027 if with_group else 0o077)
            or self.temporary.is_symlink()
        ):
            raise PermissionError(f"{self.temporary} is not a private folder of this user; remove it first")

    def remove_temporary_if_empty(self) -> None:
        """Remove the temporary folder after its last machine; to be called with the lock held."""
        with contextlib.suppress(OSError):
            self.temporary.rmdir()

    def remove_temporary(self, recorded: Path | None = None) -> None:
        """Remove the cluster's temporary folder, and the one recorded when the environment was another."""
        for folder in {self.temporary, recorded or self.temporary}:
            if folder.name.startswith("remora-"):
                unmount_below(folder)
                shutil.rmtree(folder, ignore_errors=True)


def _temporary_root() -> Path:
    """The system's temporary folder, or /tmp when that one is too long for sockets."""
    root = Path(tempfile.gettempdir())
    longest = len(os.fsencode(root)) + len(f"/remora-{os.getuid()}-12345678/12345678") + _SOCKET_SUFFIX_BYTES
    return root if longest <= _SOCKET_PATH_BYTES else Path("/tmp")  # noqa: S108  # private below it


def _short(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:8]
