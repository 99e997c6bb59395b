"""Ends what Remora has in a Ray cluster that is not its own: actors, placement groups, entries of Ray's store."""

from __future__ import annotations

import contextlib
import time
from collections import defaultdict
from typing import Any

import ray
from ray._private import state as ray_state
from ray._raylet import JobID
from ray.experimental import internal_kv
from ray.util.placement_group import PlacementGroup, remove_placement_group

from cluster.ray.programs import OURS
from remora.ray_labels import CLAIMS_NAMESPACE
from remora.ray_resources import COORDINATOR

_TIMEOUT_S = 5.0
#: Seconds that actors may take to end.
_END_S = 15.0
_LOOK_S = 0.2


def end_everything_of_ours() -> int:
    """End all actors and placement groups of jobs in our namespace; returns how many actors.

    What Ray Train shares between programs stays while another program runs.  Raises what Ray raises.
    """
    jobs = _jobs()
    ours = {job for job, namespace in jobs.items() if namespace[0] == OURS}
    others_run = any(namespace != OURS and runs for namespace, runs in jobs.values())
    ended = _end_actors(ours, others_run=others_run)
    for group, entry in ray_state.state.placement_group_table().items():
        if group[-2 * JobID.size() :] in ours and entry["state"] != "REMOVED":
            with contextlib.suppress(ray.exceptions.RayError):
                remove_placement_group(PlacementGroup(ray.PlacementGroupID(bytes.fromhex(group))))
    return ended


def remove_entries() -> None:
    """Remove all our entries of Ray's store, claims among them.  Raises what Ray raises."""
    internal_kv._internal_kv_del(b"", del_by_prefix=True, namespace=CLAIMS_NAMESPACE)


def _jobs() -> dict[str, tuple[str, bool]]:
    """Namespace of each Ray job, and whether it runs, by its id."""
    gcs = internal_kv.internal_kv_get_gcs_client()
    found = gcs.get_all_job_info(
        skip_submission_job_info_field=True, skip_is_running_tasks_field=True, timeout=_TIMEOUT_S
    )
    return {JobID(one.job_id).hex(): (one.config.ray_namespace, not one.is_dead) for one in found.values()}


def _end_actors(ours: set[str], *, others_run: bool) -> int:
    """End the detached actors of these Ray jobs; all others end with their owners."""
    ending = {
        one["ActorID"]: one["Name"]
        for one in _living(ours)
        if one["IsDetached"] and not (others_run and one["Name"] == COORDINATOR)
    }
    namespaces: defaultdict[str, set[str]] = defaultdict(set)
    for named in ray.util.list_named_actors(all_namespaces=True):
        namespaces[named["name"]].add(named["namespace"])
    for name in ending.values():
        if len(namespaces[name]) == 1:  # else one of them is another program's
            with contextlib.suppress(ValueError, ray.exceptions.RayError):
                ray.kill(ray.get_actor(name, namespace=min(namespaces[name])), no_restart=True)
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline and any(one["ActorID"] in ending for one in _living(ours)):
        time.sleep(_LOOK_S)
    return len(ending)


def _living(ours: set[str]) -> list[dict[str, Any]]:
    """Actors that live and were made by these Ray jobs."""
    return [one for one in ray_state.actors().values() if one["JobID"] in ours and one["State"] != "DEAD"]
