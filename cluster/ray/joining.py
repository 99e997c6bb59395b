"""What a machine starts to join the Ray cluster, wherever it stands: command, flags and environment (pure)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence

from cluster.provider import InvalidRequest, NodeRequest

#: A node's id, for the node's own processes and for those who want to know where they are.
NODE_VARIABLE = "REMORA_NODE_ID"

#: Modules that one process per node imports, to fork Ray's worker processes from it; empty: they are started by Ray.
FORKED_VARIABLE = "REMORA_FORKED_MODULES"

#: Settings of Ray that nodes and heads share, wherever they are.  By those of the health checks Ray calls a node dead
#: about 3 s after its processes have gone, not 13, and 8 to 9 s after its machine came to a standstill.
RAY_SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Programs send the head their requests as they send them to Ray's newer autoscaler; none is started.
    "RAY_enable_autoscaler_v2": "1",
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
    # Where `ray[default]` is installed they would be served to everyone who reaches the machine, without the secret.
    "RAY_enable_metrics_collection": "0",
    # Draining is our decision with our deadline; a SIGTERM means now.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}

#: What Ray allows in a label's value, and in the name part of its key.
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,61}[A-Za-z0-9])?")
#: Resources that have a flag of their own.
_FLAGS = {"CPU": "--num-cpus", "GPU": "--num-gpus", "memory": "--memory"}


def token_environment(path: str) -> dict[str, str]:
    """Variables of a process that shows the secret in this file to the others of its Ray cluster."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": path}


def ray_start(python: str, flags: Sequence[str]) -> list[str]:
    """The command that is a head or a node until it ends."""
    start = ("-P", "-u", "-m", "cluster.ray.start", "start", "--block", "--disable-usage-stats")
    return [python, *start, *flags]


def join_flags(request: NodeRequest, ray_address: str) -> list[str]:
    """Flags of `ray start` for a node.  Raises InvalidRequest for what Ray would refuse."""
    labels = {**request.labels, "remora-node": request.node_id, "remora-pool": request.pool}
    for key, value in labels.items():
        if not _LABEL.fullmatch(key) or not _LABEL.fullmatch(value):
            raise InvalidRequest(f"the label {key}={value!r} is not one that Ray accepts")
    for name, amount in request.resources.items():
        whole = float(amount).is_integer() or name not in _FLAGS
        if not math.isfinite(amount) or amount < 0 or not whole:
            raise InvalidRequest(
                f"{amount} of the resource {name!r} is impossible; give a whole number, 0 or more"
            )
    amounts = {"CPU": 0.0, "GPU": 0.0, **request.resources}
    named = {name: amount for name, amount in amounts.items() if name not in _FLAGS}
    return [
        f"--address={ray_address}",
        *(f"{flag}={int(amounts[name])}" for name, flag in _FLAGS.items() if name in amounts),
        f"--resources={json.dumps(named)}",
        f"--labels={','.join(f'{key}={value}' for key, value in labels.items())}",
    ]
