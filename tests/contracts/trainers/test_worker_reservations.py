"""What is reserved for workers ends with them, and a place that is lost costs the head of the cluster nothing."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)

from cluster.ray.drain import drain
from remora.ray_labels import NODE_LABEL
from tests.integration.trainers.lab import Lab, open_lab, until
from trainers import driver_actors
from trainers.launch import RayLauncher
from trainers.ray_train import draining_nodes, names_reserved
from trainers.ray_train.reservations import Reservation, Reservations, free_reservations

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

#: Seconds for which attempts are counted.
COUNTED_S = 0.5
CPU = {"CPU": 1.0}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with open_lab(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("lab")) as opened:
        yield opened


def attempts(group: PlacementGroup) -> int:
    """How often Ray has tried to place it."""
    return int(placement_group_table(group)["stats"]["scheduling_attempt"])


def attempts_in_a_while(group: PlacementGroup) -> int:
    """Attempts that Ray adds while nothing happens in the cluster."""
    before = attempts(group)
    threading.Event().wait(COUNTED_S)
    return attempts(group) - before


def ray_nodes() -> dict[str, str]:
    """Our node of each living Ray node with a CPU."""
    return {
        node["NodeID"]: node["Labels"][NODE_LABEL]
        for node in ray.nodes()
        if node["Alive"] and NODE_LABEL in node["Labels"]
    }


def die(*ray_node_ids: str, lab: Lab) -> None:
    """Take nodes away at once, and wait until Ray knows."""
    names = ray_nodes()
    for node in ray_node_ids:
        lab.provider.kill(names[node])
    until(lambda: not ray_nodes().keys() & set(ray_node_ids), "Ray knows that they are dead")


def test_ray_places_a_group_that_lost_a_bundle_again_without_pause(lab: Lab) -> None:
    """The fault of Ray 2.60 because of which each worker has a placement group of its own, on a node of our choice."""
    lab.nodes(2)
    group = placement_group([CPU] * 2, name="att_stock")
    ray.get(group.ready(), timeout=30)
    die(placement_group_table(group)["bundles_to_node_id"][0], lab=lab)
    try:
        tried = attempts_in_a_while(group)
        assert placement_group_table(group)["state"] == "RESCHEDULING"
        assert tried > 1000, (
            f"only {tried} attempts in {COUNTED_S} s: Ray waits between them now, and a lost bundle costs nothing; "
            "read docs/decisions/0072 again before this test is taken away"
        )
    finally:
        remove_placement_group(group)


def test_capacity_on_a_node_that_is_lost_or_drained_is_not_looked_for_elsewhere(lab: Lab) -> None:
    lab.nodes(3)
    reservations = Reservations("att_lost", CPU, {})
    assert reservations.are_there(reservations.ask(ray_nodes()), 30.0)
    killed, drained, stays = reservations.held
    drain(drained.ray_node_id, "the cloud takes it", time.time() + 600.0)
    until(lambda: drained.ray_node_id in draining_nodes(), "the node drains")
    die(killed.ray_node_id, drained.ray_node_id, lab=lab)
    lab.add_node()
    assert [attempts_in_a_while(one.group) for one in (killed, drained)] == [0, 0]
    assert attempts(killed.group) < 10, "nor did it try before it was looked at"
    assert places(killed, drained, stays) == ["", "", stays.ray_node_id], (
        "a new machine is for whom it was bought"
    )
    reservations.free([killed, drained])
    reservations.free([killed])
    (again,) = reservations.ask([stays.ray_node_id])
    assert again.number == 0, (
        "what looks for them after the death of a driver asks for as few names as possible"
    )
    assert sorted(one["state"] for one in named("att_lost")) == ["CREATED", "PENDING"]
    free_reservations("att_lost")
    assert named("att_lost") == []


def test_what_a_driver_asked_for_while_it_was_killed_is_freed_a_moment_later(lab: Lab) -> None:
    lab.nodes(1)
    (node,) = ray_nodes()
    late, living = Reservations("att_late", CPU, {}), Reservations("att_living", CPU, {})
    for reservations in (late, living):
        reservations.ask([node])
    driver_actors.give("att_living", "driver-att_living")
    launcher = RayLauncher()
    launcher.prepare(1)
    assert named("att_late") == []
    assert len(named("att_living")) == 1, "its attempt has a driver"
    assert names_reserved() == ["att_living"]
    assert launcher.kill("att_living")
    RayLauncher().prepare(1)
    assert named("att_living") == []
    assert names_reserved() == []


def places(*reservations: Reservation) -> list[str]:
    return [placement_group_table(one.group)["bundles_to_node_id"][0] for one in reservations]


def named(name: str) -> list[dict[str, Any]]:
    """What is left of that name, also where no driver knows it any more."""
    table = placement_group_table().values()
    return [one for one in table if one["name"].startswith(name) and one["state"] != "REMOVED"]


def test_of_two_that_have_what_the_other_one_waits_for_one_gets_everything(lab: Lab) -> None:
    lab.nodes(2)
    one, two = ray_nodes()
    first, second = Reservations("att_first", CPU, {}), Reservations("att_second", CPU, {})
    for reservations, node in ((first, one), (second, two), (first, two), (second, one)):
        (asked,) = reservations.ask([node])
        if (node, reservations) in ((one, first), (two, second)):
            ray.get(asked.group.ready(), timeout=30)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        waits = [
            pool.submit(first.are_there, list(first.held), 60.0, 1.0),
            pool.submit(second.are_there, list(second.held), 60.0, 30.0),
        ]
        assert [one.result(60) for one in waits] == [False, True], (
            "the first to give up frees capacity for the other"
        )
    assert named("att_first") == first.held == [], "all or nothing"
    second.shutdown()
    assert named("att_second") == []


def test_capacity_on_a_node_that_takes_no_work_is_not_waited_for(lab: Lab) -> None:
    lab.nodes(1)
    (node,) = ray_nodes()
    reservations = Reservations("att_waits", CPU, {})
    assert reservations.are_there(reservations.ask([node]), 30.0)
    began_at = time.monotonic()
    assert not reservations.are_there(reservations.ask(["00" * 28]), 30.0)
    assert time.monotonic() - began_at < 15.0
    assert len(named("att_waits")) == 1
    reservations.shutdown()
    assert named("att_waits") == []
