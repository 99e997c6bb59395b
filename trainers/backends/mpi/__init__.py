"""MPI: Open MPI's own mpirun inside the worker group, each rank run by its own supervisor, no ssh.

Rank 0's node runs mpirun, every other node a command server that starts mpirun's daemon; both are sidecars of the
first worker of their node.  `docs/decisions/0043-mpirun-assigns-the-ranks.md` says why.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import threading
from pathlib import Path
from typing import ClassVar

from remora.job_commands.launchers import unwrap
from trainers.backends.backend import Backend, BackendUnusable, LaunchContext, Sidecar
from trainers.backends.mpi.rank import make_pipes, report_return, variables_pipe
from trainers.isolation.confined import Confinement
from trainers.processes.child import Child

_HERE = Path(__file__).parent
#: Folder in which the ranks of a node share memory.
_SHARED_MEMORY = "OMPI_MCA_btl_vader_backing_directory"
#: How variables begin that set parameters of Open MPI and its parts.
_PARAMETERS = ("OMPI_", "PMIX_", "ORTE_", "OPAL_")
#: Seconds that mpirun may take to start one process on its own node.
_TRY_S = 20.0
#: How our processes between mpirun and a rank are started: the service's interpreter, standard library only.
_PYTHON = [sys.executable, "-S", "-E"]


class Mpi(Backend):
    """One MPI rank per worker; RANK is its rank in MPI_COMM_WORLD."""

    needs_ports: ClassVar[bool] = True

    def prepare(self, launch: LaunchContext) -> None:
        """Check that MPI is on this node, and make the pipes through which the rank gets its variables."""
        path = launch.environment.get("PATH")
        program = "mpirun" if launch.identity.rank == 0 else "orted"
        if _is_lead(launch) and shutil.which(program, path=path) is None:
            raise BackendUnusable(
                f"this node has no {program} in its PATH; install Open MPI 4 on the nodes (Debian: openmpi-bin),"
                " or write a PATH that has it into environment.variables"
            )
        make_pipes(str(launch.exchange), launch.identity.rank)

    def variables(self, launch: LaunchContext) -> dict[str, str]:
        """Where the rank finds its pipes, and settings of Open MPI that the job's own variables may override."""
        # Nodes that share a machine must not share Open MPI's shared memory; and this one goes with the supervisor.
        memory = Path(launch.environment.get("REMORA_MEMORY_DIR", launch.exchange / "-")).parent
        settings = {**_settings(launch), _SHARED_MEMORY: str(memory)}
        defaults = {name: value for name, value in settings.items() if name not in launch.environment}
        return {**defaults, "REMORA_MPI_FOLDER": str(launch.exchange)}

    def command(self, launch: LaunchContext) -> list[str]:
        """The command, which starts once mpirun has given the rank its variables."""
        command = super().command(launch)
        if shutil.which(command[0], path=launch.environment.get("PATH")) is None and "/" not in command[0]:
            raise BackendUnusable(f"{command[0]}: No such file or directory")
        return [*_PYTHON, str(_HERE / "rank.py"), "take", str(launch.identity.rank), *command]

    def sidecar(self, launch: LaunchContext) -> Sidecar | None:
        """On the node of rank 0 mpirun; on every other node the command server through which mpirun reaches it."""
        identity = launch.identity
        if not _is_lead(launch):
            return None
        if identity.rank == 0:
            hosts = launch.shared / "mpi-hosts"
            hosts.write_text("".join(f"{host}\n" for host in _hosts(identity.peers)))
            mpirun = ["mpirun", "--hostfile", str(hosts), "--map-by", "seq", "-n", str(identity.world_size)]
            servers = {
                "REMORA_MPI_DOORS": json.dumps(
                    {"doors": _command_servers(identity.peers), "key": identity.key}
                )
            }
            return Sidecar(
                command=[*mpirun, *_PYTHON, str(_HERE / "rank.py"), "give"],
                environment={**_without_ranks(launch), **servers},
            )
        return Sidecar(
            command=[
                *_PYTHON,
                str(_HERE / "command_server.py"),
                *identity.peers[identity.rank].rsplit(":", 1),
            ],
            environment={**_without_ranks(launch), "REMORA_MPI_KEY": identity.key},
        )

    def has_started(self, launch: LaunchContext) -> bool:
        """True once the rank has its variables."""
        return not Path(variables_pipe(str(launch.exchange), launch.identity.rank)).exists()

    def blame(self, launch: LaunchContext) -> str | None:
        """The job's own parameters of Open MPI, when mpirun starts a process here without them and none with them."""
        asked = {**unwrap(launch.plan.command).variables, **launch.plan.variables}
        own = sorted(name for name in asked if name.startswith(_PARAMETERS))
        seen = _without_ranks(launch)
        without = {name: value for name, value in seen.items() if name not in own}
        walls = launch.confinement
        if not own or _runs(seen, walls) or not _runs({**_settings(launch), **without}, walls):
            return None
        return f"mpirun starts nothing with the job's {', '.join(own)[:300]}; correct that, or leave it out"

    def returned(self, launch: LaunchContext) -> None:
        """Let mpirun count this rank as ended."""
        report_return(str(launch.exchange), launch.identity.rank)


def _runs(environment: dict[str, str], confinement: Confinement | None = None) -> bool:
    """True when mpirun can start one process on this node; nothing that it started is left."""
    try:
        trial = Child(
            ["mpirun", "-n", "1", "true"],
            folder=Path("/"),
            environment=environment,
            line_bytes=1000,
            grace_s=0.0,
            on_lines=lambda *_: None,
            on_message=lambda _: None,
            confinement=confinement,
        )
    except (OSError, ValueError):
        return False
    late = threading.Timer(_TRY_S, trial.stop, kwargs={"at_once": True})
    late.start()
    try:
        return trial.wait().get("exit_code") == 0
    finally:
        late.cancel()


def _without_ranks(launch: LaunchContext) -> dict[str, str]:
    """What mpirun and its daemons see: they are no rank, and what they keep goes with the worker group."""
    hidden = {name for name in launch.environment if name.endswith("RANK")} | {_SHARED_MEMORY}
    seen = {name: value for name, value in launch.environment.items() if name not in hidden}
    return {**seen, "TMPDIR": str(launch.exchange)}


def _is_lead(launch: LaunchContext) -> bool:
    return launch.identity.local_rank == 0


def _hosts(peers: tuple[str, ...]) -> list[str]:
    """The node of each rank as mpirun shall call it: its own one by its name, which it knows to be here."""
    addresses = [peer.rsplit(":", 1)[0] for peer in peers]
    here = socket.gethostname()
    return [here if address == addresses[0] else address for address in addresses]


def _command_servers(peers: tuple[str, ...]) -> dict[str, tuple[str, int]]:
    """Node -> address of its command server: at the port of the first of its ranks."""
    servers: dict[str, tuple[str, int]] = {}
    for peer in peers:
        address, _, port = peer.rpartition(":")
        servers.setdefault(address, (address, int(port)))
    return servers


def _settings(launch: LaunchContext) -> dict[str, str]:
    """Open MPI's parameters as variables: https://www.open-mpi.org/doc/v4.1/man1/mpirun.1.php"""
    settings = {
        # A node's processes all run as one user, which in a container is root.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_plm": "rsh",
        "OMPI_MCA_plm_rsh_agent": " ".join([*_PYTHON, str(_HERE / "rsh_agent.py")]),
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "OMPI_MCA_orte_leave_session_attached": "1",
        # Workers of several jobs may share a node, and each would be bound to the same first core.
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        # A rank that waits would else keep its supervisor from the CPU.
        "OMPI_MCA_mpi_yield_when_idle": "1",
    }
    if launch.identity.peers[0].startswith("127."):
        # By itself Open MPI leaves loopback addresses out.
        settings |= {f"OMPI_MCA_{name}_tcp_if_include": "127.0.0.0/8" for name in ("btl", "oob")}
    return settings
