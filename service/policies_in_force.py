"""The policies in force: read by the controller at every tick, and by the API where it shows limits."""

from __future__ import annotations

import logging
from functools import lru_cache

import sqlalchemy as sa

from cluster.policies.documents import read_stored
from cluster.policies.policies import Policies
from cluster.policies.policy_problems import PoliciesRefused
from service.clouds.fixed_pool import fixed_pool
from service.garbage_collection import without_collections
from service.queue.intake import JobLimits
from service.queue.policy_versions import PolicyRow
from service.settings import Settings
from service.store import policies as store

log = logging.getLogger(__name__)

#: Versions that are tried before the settings are followed again.
_TRIED = 100
#: The newest document that was cut to each cluster, and what is left of it: a tick asks several times.
_CUT: dict[str, tuple[Policies, Policies]] = {}


def policies_in_force(connection: sa.Connection, settings: Settings) -> Policies:
    """The newest version that can be read, else what the settings say.

    A version was accepted once, so that its form alone is looked at; a release that cannot read it says so in its log.
    """
    newest = store.newest_policies(connection)
    if newest is not None and (policies := _read(newest)) is not None:
        return policies
    earlier = []
    if newest is not None:
        earlier = store.page_of_policies(connection, before=newest.version, limit=_TRIED)
    for row in (*earlier, fixed_pool(settings)):
        if (policies := _read(row)) is not None:
            return policies
    raise AssertionError("unreachable: what the settings say can be read")


def policies_of_cluster(connection: sa.Connection, settings: Settings) -> Policies:
    """What the controller of the settings' cluster follows: the pools that are its own."""
    return _of_cluster(policies_in_force(connection, settings), settings.cluster)


def limits_in_force(connection: sa.Connection, settings: Settings) -> JobLimits:
    """How many jobs may wait or run, and what may be kept of their projects, by the settings and the policies."""
    return JobLimits(settings.max_active_jobs, policies_in_force(connection, settings))


def _of_cluster(policies: Policies, cluster: str) -> Policies:
    known = _CUT.get(cluster)
    if known is None or known[0] is not policies:
        known = _CUT[cluster] = policies, policies.of_cluster(cluster)
    return known[1]


@lru_cache(maxsize=_TRIED + 2)
def _read(row: PolicyRow) -> Policies | None:
    try:
        with without_collections():
            policies = read_stored(row.document)
    except PoliciesRefused as error:
        log.error(  # noqa: TRY400 - the sentence says it all
            "version %d of the policies is refused here, an earlier one is followed: %s", row.version, error
        )
        return None
    log.info("version %d of the policies is followed", row.version)
    return policies
