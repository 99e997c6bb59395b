"""What becomes of a worker group, without any API server."""

from __future__ import annotations

import pytest

from cluster.kuberay.documents import SeenCluster, read_cluster, read_pod
from cluster.kuberay.nodes import STUCK_S, node_of
from cluster.kuberay.pod_claims import (
    GroupDecision,
    KubernetesClaim,
    PodState,
    SeenGroup,
    SeenPod,
    decide,
    read_claims,
    written_claims,
)
from cluster.kuberay.settings import KubeRaySettings, WorkerGroup
from cluster.policies.offerings import CapacityType


def claim(name: str, pod: str | None = None, at: float = 0.0) -> KubernetesClaim:
    return KubernetesClaim(node_id=name, group="g", pool="p", at=at, pod=pod)


def pod(name: str, state: PodState = PodState.RUNNING, at: float = 0.0) -> SeenPod:
    return SeenPod(name=name, group="g", state=state, created_at=at)


def group(replicas: int, *named: str) -> SeenGroup:
    return SeenGroup(name="g", index=0, replicas=replicas, most=99, to_delete=named)


def pods_of(decision: GroupDecision) -> dict[str, str | None]:
    return {one.node_id: one.pod for one in decision.claims}


def test_nothing_to_do_is_no_news() -> None:
    decision = decide(group(1), [pod("a")], [claim("n", "a")])
    assert not decision.is_news
    assert not decision.is_excessive


def test_the_oldest_request_gets_the_oldest_pod() -> None:
    decision = decide(
        group(2), [pod("new", at=2), pod("old", at=1)], [claim("late", at=9), claim("early", at=8)]
    )
    assert pods_of(decision) == {"late": "new", "early": "old"}


@pytest.mark.parametrize(
    ("state", "replicas"), [(PodState.RUNNING, 1), (PodState.LEAVING, 1), (PodState.ENDED, 2)]
)
def test_the_number_goes_down_with_a_pod_that_counts_and_waits_for_the_next_one_otherwise(
    state: PodState, replicas: int
) -> None:
    """KubeRay may have made another pod for an ended one already, and would end any pod for it."""
    decision = decide(
        group(2), [pod("a"), pod("b", state)], [claim("x", "a"), claim("y", "b")], leaving=["y"]
    )
    assert (decision.replicas, decision.to_delete) == (replicas, ("b",))
    assert pods_of(decision) == {"x": "a"}


def test_a_name_goes_with_its_pod_and_not_before() -> None:
    still = decide(group(1, "b"), [pod("a"), pod("b", PodState.LEAVING)], [claim("x", "a")])
    assert (still.replicas, still.to_delete, still.is_news) == (1, ("b",), False)
    gone = decide(group(1, "b"), [pod("a")], [claim("x", "a")])
    assert (gone.to_delete, gone.is_news) == ((), True)


def test_a_named_pod_is_given_to_no_node() -> None:
    decision = decide(group(1, "b"), [pod("b")], [], joining=[claim("n")])
    assert pods_of(decision) == {"n": None}
    assert decision.replicas == 1


def test_pods_that_do_not_come_are_forgotten_only_when_it_is_time() -> None:
    early = decide(group(3), [pod("a")], [claim("x", "a")])
    assert (early.replicas, early.is_excessive) == (3, True)
    late = decide(group(3), [pod("a")], [claim("x", "a")], forget_excess=True)
    assert late.replicas == 1


@pytest.mark.parametrize("state", [PodState.LEAVING, PodState.ENDED])
def test_pods_are_forgotten_only_down_to_those_that_are_there(state: PodState) -> None:
    """KubeRay counts one that leaves and is not named, and would end any other one for it."""
    decision = decide(
        group(4), [pod("a"), pod("b", state)], [claim("x", "a"), claim("y")], forget_excess=True
    )
    assert (decision.replicas, decision.to_delete) == (3, ())


def test_pods_that_kuberay_keeps_at_least_are_not_named() -> None:
    kept = SeenGroup(name="g", index=0, replicas=3, most=99, least=2)
    decision = decide(kept, [pod("a"), pod("b", at=1), pod("c", at=2)], [claim("x", "a")])
    assert (decision.replicas, decision.to_delete) == (2, ("c",))


def test_what_is_written_is_read_again() -> None:
    claims = {
        "n": KubernetesClaim(
            node_id="n", group="g", pool="p", at=1.5, resources={"CPU": 1.0}, labels={"a": "b"}, pod="x"
        )
    }
    assert read_claims(written_claims(claims)) == claims
    assert read_claims(None) == {}


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"metadata": None, "spec": [], "status": "x"},
        {
            "metadata": {"annotations": {"remora-nodes": 5}},
            "spec": {"workerGroupSpecs": [None, {"replicas": "x"}]},
        },
        {"spec": {"workerGroupSpecs": [{"scaleStrategy": {"workersToDelete": {}}, "maxReplicas": True}]}},
        {
            "status": {
                "conditions": [None, {"type": "ReplicaFailure", "status": "True", "lastTransitionTime": []}]
            }
        },
    ],
)
def test_documents_of_another_form_say_nothing(document: dict[str, object]) -> None:
    seen = read_cluster(document)
    assert all(one.replicas == 0 for one in seen.groups.values())
    assert read_pod(document).state is PodState.STARTING


def worker_group(capacity: CapacityType) -> WorkerGroup:
    return WorkerGroup(
        name="g", capacity=capacity, resources={"CPU": 4.0}, price_per_hour=1.0, evictions_per_hour=0.2
    )


def test_only_pods_of_spot_are_taken_back() -> None:
    assert worker_group(CapacityType.SPOT).offering.evictions_per_hour == 0.2
    assert worker_group(CapacityType.ON_DEMAND).offering.evictions_per_hour == 0.0


@pytest.mark.parametrize(
    ("is_stuck", "may_pass", "waited_s", "runs"),
    [
        (False, False, 2 * STUCK_S, True),
        (True, False, 1.0, False),
        (True, True, STUCK_S - 1.0, True),
        (True, True, STUCK_S, False),
    ],
)
def test_a_pod_that_cannot_start_is_given_up_at_once_or_after_the_time_that_its_image_may_take(
    is_stuck: bool, may_pass: bool, waited_s: float, runs: bool
) -> None:
    cluster = SeenCluster(
        version="1", groups={"g": group(1)}, claims=None, has_annotations=True, is_autoscaled=False
    )
    settings = KubeRaySettings(namespace="n", cluster="c", groups=(worker_group(CapacityType.SPOT),))
    waits = SeenPod(
        name="a", group="g", state=PodState.STARTING, placed_at=50.0, is_stuck=is_stuck, may_pass=may_pass,
        message="its image is not there",
    )  # fmt: skip
    node = node_of(claim("n", "a", at=10.0), cluster, waits, settings, 50.0 + waited_s)
    assert node.is_running is runs
    assert (node.message is None) is runs
