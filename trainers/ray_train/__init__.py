"""Every use of Ray Train's internals: its controller run inside the driver, with policies of ours.

Written against Ray 2.60 and held to it by `tests/contracts/trainers/test_ray_train.py`.  What differs from stock, and
why, with measurements: `docs/decisions/0001-ray-trains-controller-runs-inside-the-driver.md`.
"""

from trainers.ray_train.coordinator import keep as keep_coordinator
from trainers.ray_train.leftovers import give_back_checkpoints
from trainers.ray_train.liveness import (
    answering_nodes,
    draining_nodes,
    find_dead,
    is_lost,
    is_pending,
    living_heads,
    nodes_with,
    our_nodes,
    ray_nodes_of,
)
from trainers.ray_train.owner import AttemptEnds, Member, NominatedNodes, Owner
from trainers.ray_train.reservations import forget_reservations, names_reserved
from trainers.ray_train.run import free_resources, run_to_end
from trainers.ray_train.start_limit import StartLimit

__all__ = [
    "AttemptEnds",
    "Member",
    "NominatedNodes",
    "Owner",
    "StartLimit",
    "answering_nodes",
    "draining_nodes",
    "find_dead",
    "forget_reservations",
    "free_resources",
    "give_back_checkpoints",
    "is_lost",
    "is_pending",
    "keep_coordinator",
    "living_heads",
    "names_reserved",
    "nodes_with",
    "our_nodes",
    "ray_nodes_of",
    "run_to_end",
]
