"""Connect this process to a Ray cluster whose secret lies in a home folder."""

from __future__ import annotations

import os
from pathlib import Path

import ray
from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]

from cluster.local.environment import ray_environment
from cluster.ray.certificates import TLS_VARIABLES

#: Namespace of all our actors.
NAMESPACE = "remora"


def connect(home: Path, ray_address: str, node_address: str | None = None) -> None:
    """`ray.init` for the cluster of this home, from any process and however often.

    Ray reads its environment when it is imported and keeps the secret for ever, so a process that imported it before
    gets the secret here.  Raises ConnectionError when the head does not answer.
    """
    for name in TLS_VARIABLES:
        os.environ.pop(name, None)
    os.environ.update(ray_environment(home))
    Config.initialize("")
    AuthenticationTokenLoader.instance().reset_cache()
    ray.init(
        address=ray_address,
        namespace=NAMESPACE,
        log_to_driver=False,
        configure_logging=False,
        _node_ip_address=node_address,
    )
