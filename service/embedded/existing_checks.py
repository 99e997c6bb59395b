"""python -m service.embedded.existing_checks look|join|leave --home DIR --address HOST:PORT [--storage URL]

A process of its own that connects to an existing Ray cluster for `remora up` and `remora down`, and says what it found
as one JSON object on its last line: `problems`, `notes`, `ended`.  Ray ends a process that cannot be what it should be.

- `look`: whether a head answers, and which versions the cluster has.
- `join`: what each node lacks, once this machine has a member in it, and whether another service is there already.
- `leave`: ends all that is ours in it.
"""

from __future__ import annotations

import argparse
import json
import platform
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

from cluster.existing.owner import owner_of
from cluster.existing.packages import brought
from cluster.existing.sentences import (
    NodeFacts,
    head_notes,
    made_by_remora,
    sorted_out,
    version_problems,
)
from cluster.ray.node_claims import ClaimStore, RayNode
from cluster.ray.programs import OURS
from remora.ray_labels import NODE_LABEL
from service.azure_storage import azure_place
from service.settings import Settings
from service.storage_locations import open_storage
from trainers.existing_nodes import look_at_node, sweep_existing_node
from trainers.storage import StorageError

#: Seconds for one question to the head.
_ASK_S = 10
#: Nodes that are looked at, as a cluster's nodes are alike, and that are swept at the same time.
_MOST_NODES = 64
#: Seconds that nodes may take to unpack Remora and answer.
_LOOK_S = 90.0
#: Seconds that nodes may take to remove what jobs left.
_SWEEP_S = 20.0
#: The same for all of them, which are asked one after another.
_SWEEP_ALL_S = 40.0
#: Seconds until this machine's member has joined.
_MEMBER_S = 30.0
#: What the head's own node brings.
_HEAD = "node:__internal_head__"


def look(address: str) -> dict[str, Any]:
    """Whether the cluster can be used at all, before this machine takes part in it."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5.0).close()
    except OSError as error:
        return _problem(
            f"no Ray head answers at {address} ({error.strerror or error}); is it up, and is that its port?"
        )
    from ray._common.usage.usage_lib import get_cluster_metadata
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    try:
        theirs = get_cluster_metadata(GcsClient(address=address))
    except Exception as error:  # Ray raises what its RPC library raises
        said = " ".join(str(error).split())[:300] or type(error).__name__
        return _problem(
            f"what listens at {address} does not answer as a Ray head ({said}): check its port, and give its secret by"
            " RAY_AUTH_MODE=token with RAY_AUTH_TOKEN_PATH, and its certificates by RAY_USE_TLS=1 with RAY_TLS_CA_CERT,"
            " RAY_TLS_SERVER_CERT and RAY_TLS_SERVER_KEY, where it has these"
        )
    ours = {"ray_version": version("ray"), "python_version": platform.python_version()}
    return {"problems": version_problems(ours, theirs)}


def join(settings: Settings, address: str) -> dict[str, Any]:
    """What keeps jobs from running on the nodes, and what is to be known of them.  Raises what Ray raises."""
    store = ClaimStore(owner_of(settings.home))
    if other := store.other_owner():
        return _problem(_taken(other, address))
    nodes = store.nodes()
    if made := [node.address for node in nodes if node.is_alive and NODE_LABEL in node.labels]:
        return _problem(made_by_remora(made))
    python = platform.python_version()
    looked = _look_at([node for node in nodes if node.is_usable], settings)
    # One that has gone meanwhile lacks nothing.
    left = {node.id for node in store.nodes() if node.is_usable}
    found = sorted_out(
        {node.id: facts for node, facts in looked if node.id in left}, settings.storage, python
    )
    if found.problems:
        return {"problems": found.problems}
    # Last, so that nothing is left of a service that cannot use it; of two at once the first one counts.
    store.own()
    if other := store.other_owner():
        return _problem(_taken(other, address))
    store.set_unfit(found.unfit)
    for one in found.unfit:
        store.release(one)
    heads = [node.address for node in nodes if node.is_usable and _HEAD in node.resources]
    return {"notes": [*found.notes, *head_notes(heads)], "nodes": len(left) - len(found.unfit)}


def leave() -> dict[str, Any]:
    """End all that is ours in the cluster, and remove what jobs have left on its nodes.  Raises what Ray raises."""
    import ray

    from cluster.existing.leaving import end_everything_of_ours, remove_entries

    ended = end_everything_of_ours()
    store = ClaimStore()
    claimed = {claim.ray_node_id for claim in store.claims()}
    # Nodes that are not claimed may have nothing of ours, so they come last.
    nodes = sorted((one for one in store.nodes() if one.is_usable), key=lambda one: one.id not in claimed)
    deadline = time.monotonic() + _SWEEP_ALL_S
    for first in range(0, len(nodes), _MOST_NODES):
        swept = [_on(node, sweep_existing_node).remote() for node in nodes[first : first + _MOST_NODES]]
        left_s = max(0.0, deadline - time.monotonic())
        ray.wait(swept, num_returns=len(swept), timeout=min(_SWEEP_S, left_s))
    # They say what is to be swept, so they go last: a repetition after an interruption finds them.
    remove_entries()
    return {"problems": [], "ended": ended}


def _taken(owner: str, address: str) -> str:
    return (
        f"the cluster is used by the service in {owner[:200]}: end that one with `remora down` there, or remove what it"
        f" left by `remora down --ray-address {address}` here"
    )


def _look_at(nodes: Sequence[RayNode], settings: Settings) -> list[tuple[RayNode, NodeFacts]]:
    """The facts of each node, of at most `_MOST_NODES`."""
    import ray

    name, content = f"probes/{uuid4().hex}", uuid4().hex.encode()
    # With a grant for the names of a job a node reaches a storage in Azure; it holds no credential to look with.
    url = "" if azure_place(settings.storage) is not None else settings.storage
    storage = open_storage(settings, settings.storage) if url else None
    if storage is not None:
        storage.write_bytes(name, content)
    try:
        asked = {_on(node, look_at_node).remote(url, name, content): node for node in nodes[:_MOST_NODES]}
        done, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_LOOK_S) if asked else ([], [])
        return [(node, _facts(node.address, one if one in done else None)) for one, node in asked.items()]
    finally:
        if storage is not None:
            storage.delete(name)


def _facts(address: str, answer: Any) -> NodeFacts:
    import ray

    if answer is None:
        return NodeFacts(
            address=address,
            silence=f"there was no answer within {_LOOK_S:g} s; nodes and this machine have to reach each other at all"
            " ports, in both directions",
        )
    try:
        return NodeFacts(address=address, **ray.get(answer))
    except Exception as error:  # whatever went wrong there
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return NodeFacts(address=address, silence=(lines[-1] if lines else type(error).__name__)[:300])


def _on(node: RayNode, work: Any) -> Any:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(node.id, soft=False)
    return ray.remote(num_cpus=0, max_retries=0)(work).options(scheduling_strategy=here)


def _connect(address: str, runtime_env: Mapping[str, Any]) -> None:
    """Connect through a node of this machine, once there is one.  Raises what Ray raises."""
    import ray
    from ray._private.services import find_node_ids

    deadline = time.monotonic() + _MEMBER_S
    while not find_node_ids() and time.monotonic() < deadline:
        time.sleep(0.1)
    ray.init(
        address=address,
        namespace=OURS,
        log_to_driver=False,
        configure_logging=False,
        runtime_env=dict(runtime_env),
    )


def _problem(text: str) -> dict[str, Any]:
    return {"problems": [text]}


def main(words: Sequence[str]) -> int:
    """Do one of the three and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m service.embedded.existing_checks", description=__doc__)
    parser.add_argument("step", choices=("look", "join", "leave"))
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--address", required=True)
    given = parser.parse_args(words)
    settings = Settings(home=given.home, cloud="existing")
    try:
        if given.step == "look":
            found = look(given.address)
        else:
            with brought(given.home) as runtime_env:
                _connect(given.address, runtime_env)
            found = join(settings, given.address) if given.step == "join" else leave()
    except StorageError as error:
        found = _problem(f"the storage cannot be written: {error}")
    except Exception as error:  # Ray raises what its RPC library raises; OSError of files
        said = " ".join(str(error).split())[:400] or type(error).__name__
        found = _problem(f"the Ray cluster at {given.address} cannot be used: {said}")
    print(json.dumps({"problems": [], "notes": [], **found}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
