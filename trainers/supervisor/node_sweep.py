"""Removes what killed supervisors left on their node: processes, containers, folders, files in memory."""

from __future__ import annotations

import logging

from remora import cgroups
from trainers.containers.container import sweep_containers
from trainers.isolation.users import sweep_users
from trainers.node_folders import sweep_folders
from trainers.supervisor.snapshot_memory import sweep_memory
from trainers.supervisor.temporary_folders import sweep_temporary, sweep_temporary_of_node

log = logging.getLogger(__name__)


def sweep_node() -> None:
    """End and remove all that belongs to dead supervisors of this node."""
    try:
        cgroups.sweep()
    except cgroups.ProcessesRemain as error:
        log.warning("%s", error)
    sweep_folders()
    sweep_temporary_of_node()
    sweep_machine()


def sweep_machine() -> None:
    """Remove what such supervisors left outside of their node's own folder: containers, temporary files, memory."""
    try:
        sweep_users()
    except OSError as error:
        log.warning("users of jobs are not given back: %s", error)
    sweep_containers()
    sweep_temporary()
    sweep_memory()
