"""What only the KubeRay provider can get wrong: KubeRay's own choices, other writers, and an API server that fails."""

from __future__ import annotations

import json
import random
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cluster.kuberay.emulator.server import KubernetesEffect
from cluster.kuberay.nodes import STUCK_S
from cluster.kuberay.pod_claims import MOST_BYTES, NODES_ANNOTATION, read_claims
from cluster.kuberay.provider import EXCESS_S, NAME_AGAIN_S, TRIES
from cluster.provider import (
    InsufficientCapacity,
    InvalidRequest,
    NodeRequest,
    ProvidedNode,
    ProviderError,
    QuotaExceeded,
    Throttled,
    Unanswered,
    Unauthorized,
)
from cluster.ray.certificates import issue, make_authority
from tests.contracts.cluster.kuberay_rig import GROUP, OFFERING, KubeRayRig, request, rights


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[KubeRayRig]:
    with KubeRayRig(tmp_path, rights()) as rig:
        yield rig


def only(nodes: list[ProvidedNode]) -> ProvidedNode:
    (node,) = nodes
    return node


class TestNames:
    """A pod has to learn which node it is."""

    def test_a_pod_learns_its_node_with_all_that_it_joins_with(self, rig: KubeRayRig) -> None:
        wanted = NodeRequest(
            node_id="node_a", pool="cpu", resources={"CPU": 4.0}, labels={"a": "b"}, offering=OFFERING
        )
        rig.create(wanted)
        rig.list()
        known = rig.names.known[rig.pod_of("node_a")]
        assert (known.node_id, known.pool, known.resources, known.labels) == (
            "node_a",
            "cpu",
            {"CPU": 4.0},
            {"a": "b"},
        )

    def test_the_node_that_waited_longest_gets_the_first_pod(self, rig: KubeRayRig) -> None:
        rig.world.quota = 0
        for name in ("node_a", "node_b"):
            rig.create(request(name))
        rig.list()
        rig.world.quota = 1
        rig.world.look()
        rig.list()
        assert [one.node_id for one in rig.names.known.values()] == ["node_a"]

    def test_a_head_that_does_not_answer_is_asked_at_the_next_look_and_the_list_is_whole(
        self, rig: KubeRayRig
    ) -> None:
        rig.names.is_silent = True
        rig.create(request())
        assert only(rig.list()).is_running
        assert rig.names.known == {}
        rig.names.is_silent = False
        rig.list()
        assert len(rig.names.known) == 1

    def test_all_are_named_again_now_and_then_and_by_the_next_controller(self, rig: KubeRayRig) -> None:
        rig.create(request())
        rig.list()
        rig.list()
        assert rig.names.calls == 1
        rig.clock.passed_s = NAME_AGAIN_S
        rig.list()
        assert rig.names.calls == 2
        rig.another().list()
        assert rig.names.calls == 3

    def test_a_pod_that_is_gone_is_forgotten(self, rig: KubeRayRig) -> None:
        rig.create(request())
        rig.list()
        rig.delete("node_a")
        rig.list()
        assert rig.names.known == {}


class TestWhatKubeRayDoes:
    """KubeRay makes another pod for each that ends, and chooses one by itself where there are too many."""

    def test_the_pod_that_ends_is_the_one_of_the_node_given_back(self, rig: KubeRayRig) -> None:
        for name in ("node_a", "node_b", "node_c"):
            rig.create(request(name))
        rig.list()
        kept = {rig.pod_of(name) for name in ("node_a", "node_c")}
        rig.delete("node_b")
        assert rig.world.pods.keys() == kept
        assert rig.group()["replicas"] == 2

    def test_a_pod_that_is_leaving_stays_named_until_it_is_gone(self, rig: KubeRayRig) -> None:
        rig.world.lingers = True
        for name in ("node_a", "node_b"):
            rig.create(request(name))
        rig.list()
        first, second = rig.pod_of("node_a"), rig.pod_of("node_b")
        rig.delete("node_a")
        for _ in range(2):
            assert [node.node_id for node in rig.list()] == ["node_b"]
            assert rig.group()["scaleStrategy"]["workersToDelete"] == [first]
            rig.world.look()
        rig.world.finish()
        rig.list()
        assert rig.group()["scaleStrategy"]["workersToDelete"] == []
        assert rig.world.pods.keys() == {second}
        assert "deletionTimestamp" not in rig.world.pods[second]["metadata"]

    def test_a_node_whose_pod_ended_is_dead_although_another_pod_came(self, rig: KubeRayRig) -> None:
        rig.create(request())
        rig.list()
        first = rig.pod_of("node_a")
        rig.world.fail(first)
        node = only(rig.list())
        assert not node.is_running
        assert first in str(node.message)
        rig.list()
        assert not rig.world.pods, "the other pod is given back at once: no node waits for it"
        assert rig.group()["replicas"] == 0

    def test_what_kubernetes_says_of_an_end_is_the_message(self, rig: KubeRayRig) -> None:
        rig.create(request())
        rig.list()
        rig.world.operator_runs = False
        rig.world.fail(rig.pod_of("node_a"), "Preempting", "Preempted in order to admit critical pod")
        assert "Preempting: Preempted in order" in str(only(rig.list()).message)

    def test_a_pod_that_came_for_a_dead_one_goes_to_a_node_that_waits(self, rig: KubeRayRig) -> None:
        rig.create(request("node_a"))
        rig.list()
        rig.world.fail(rig.pod_of("node_a"))
        (other,) = rig.world.pods
        rig.create(request("node_b"))
        rig.list()
        assert rig.pod_of("node_b") == other
        assert rig.world.pods.keys() == {other}
        assert {node.node_id: node.is_running for node in rig.list()} == {"node_a": False, "node_b": True}

    def test_a_pod_that_was_a_node_never_becomes_another(self, rig: KubeRayRig) -> None:
        rig.world.lingers = True
        rig.create(request("node_a"))
        rig.list()
        first = rig.pod_of("node_a")
        rig.delete("node_a")
        rig.create(request("node_b"))
        rig.list()
        assert rig.pod_of("node_b") != first

    def test_spot_machines_that_are_taken_are_nodes_that_died(self, rig: KubeRayRig) -> None:
        for name in ("node_a", "node_b"):
            rig.create(request(name))
        rig.list()
        kept = rig.pod_of("node_b")
        rig.world.take(rig.pod_of("node_a"))
        dead, alive = rig.list()
        assert (dead.is_running, alive.is_running) == (False, True)
        assert "evicted or deleted" in str(dead.message)
        rig.delete("node_a")
        rig.list()
        assert rig.world.pods.keys() == {kept}

    def test_pods_that_never_came_are_not_wanted_for_ever(self, rig: KubeRayRig) -> None:
        rig.world.quota = 0
        rig.create(request())
        rig.list()
        rig.delete("node_a")
        rig.list()
        assert rig.group()["replicas"] == 1, "one may be on its way: KubeRay would take any other for it"
        rig.clock.passed_s = 61
        rig.list()
        assert rig.group()["replicas"] == 0

    def test_pods_that_an_operator_asked_for_by_hand_are_given_back(self, rig: KubeRayRig) -> None:
        rig.create(request())
        rig.list()
        kept = rig.pod_of("node_a")
        rig.group()["replicas"] = 3
        rig.world.look()
        assert len(rig.world.pods) == 3
        rig.list()
        assert rig.world.pods.keys() == {kept}


class TestPodsOfOthers:
    """Pods that were not made for a node, where the RayCluster does not let us act, stay as they are."""

    def three_pods(self, rig: KubeRayRig) -> set[str]:
        rig.group()["replicas"] = 3
        rig.world.look()
        return set(rig.world.pods)

    @pytest.mark.parametrize(
        "change",
        [
            lambda cluster: cluster["spec"].update(enableInTreeAutoscaling=True),
            lambda cluster: cluster["spec"]["workerGroupSpecs"][0].update(numOfHosts=2),
            lambda cluster: cluster["metadata"].pop("annotations"),
            lambda cluster: cluster["spec"]["workerGroupSpecs"][0].update(minReplicas=3),
        ],
        ids=["autoscaled", "hosts", "no annotation", "least"],
    )
    def test_they_live_on_and_nothing_is_written(self, rig: KubeRayRig, change: Any) -> None:
        change(rig.world.cluster)
        pods = self.three_pods(rig)
        for _ in range(3):
            assert rig.list() == []
            rig.clock.passed_s += EXCESS_S + 1
        with pytest.raises(InvalidRequest):
            rig.create(request())
        assert (set(rig.world.pods), rig.patches()) == (pods, 0)

    def test_a_node_is_not_given_back_while_rays_autoscaler_is_on(self, rig: KubeRayRig) -> None:
        rig.create(request())
        rig.list()
        before = rig.patches()
        rig.world.cluster["spec"]["enableInTreeAutoscaling"] = True
        with pytest.raises(ProviderError, match="enableInTreeAutoscaling"):
            rig.delete("node_a")
        assert rig.patches() == before
        rig.world.cluster["spec"]["enableInTreeAutoscaling"] = False
        rig.delete("node_a")
        assert rig.world.pods == {}

    def test_an_operator_gives_them_to_us_by_the_annotation(self, rig: KubeRayRig) -> None:
        del rig.world.cluster["metadata"]["annotations"]
        self.three_pods(rig)
        assert rig.list() == []
        rig.world.cluster["metadata"]["annotations"] = {NODES_ANNOTATION: "{}"}
        rig.list()
        assert rig.world.pods == {}

    def test_with_a_least_number_no_pod_is_ended_for_which_another_one_would_come(
        self, rig: KubeRayRig
    ) -> None:
        rig.create(request())
        rig.list()
        rig.group()["minReplicas"] = 1
        rig.delete("node_a")
        rig.list()
        (other,) = rig.world.pods
        for _ in range(3):
            rig.clock.passed_s += EXCESS_S + 1
            rig.list()
        assert set(rig.world.pods) == {other}

    def test_pods_are_not_forgotten_that_kuberay_has_not_yet_seen_asked_for(self, rig: KubeRayRig) -> None:
        rig.world.operator_runs = False
        rig.create(request())
        rig.delete("node_a")
        for _ in range(3):
            rig.clock.passed_s += EXCESS_S + 1
            rig.list()
        assert rig.group()["replicas"] == 1
        rig.world.operator_runs, rig.world.quota = True, 0
        rig.world.look()
        rig.list()
        assert rig.group()["replicas"] == 0


class TestRefusals:
    """No machine, no quota, no image: what becomes of a node that was promised."""

    def test_a_pod_may_wait_for_a_machine_and_then_its_group_is_sold_out(self, rig: KubeRayRig) -> None:
        rig.world.capacity[GROUP] = 0
        rig.create(request())
        node = only(rig.list())
        assert (node.is_running, node.refusal) == (True, None), "an autoscaler adds machines within minutes"
        rig.clock.passed_s = rig.settings().patience_s + 1
        node = only(rig.list())
        assert not node.is_running
        assert "Insufficient nvidia.com/gpu" in str(node.message)
        assert isinstance(node.refusal, InsufficientCapacity)
        assert node.refusal.closes == (OFFERING,)
        assert node.refusal.until > rig.clock()

    def test_a_namespace_without_quota_is_said_and_closes_the_group(self, rig: KubeRayRig) -> None:
        rig.world.quota = 0
        rig.create(request())
        assert only(rig.list()).refusal is None
        rig.clock.passed_s = 31
        node = only(rig.list())
        assert isinstance(node.refusal, QuotaExceeded)
        assert node.refusal.closes == (OFFERING,)
        assert "exceeded quota" in str(node.message)

    @pytest.mark.parametrize("reason", ["ImagePullBackOff", "CrashLoopBackOff", "CreateContainerConfigError"])
    def test_a_pod_that_cannot_start_does_not_run_and_says_why(self, rig: KubeRayRig, reason: str) -> None:
        rig.create(request())
        rig.list()
        rig.world.stick(rig.pod_of("node_a"), reason, "Back-off pulling image\n\x1b[31m" + "x" * 5000)
        if reason != "CrashLoopBackOff":
            assert only(rig.list()).is_running, "a registry may answer again"
            rig.clock.passed_s = STUCK_S + 1
        node = only(rig.list())
        assert not node.is_running
        assert reason in str(node.message)
        assert len(str(node.message)) < 700
        assert "\n" not in str(node.message)

    def test_a_group_that_is_full_closes_its_offering_and_makes_nothing(self, rig: KubeRayRig) -> None:
        rig.group()["maxReplicas"] = 1
        rig.create(request("node_a"))
        with pytest.raises(QuotaExceeded, match="maxReplicas") as refused:
            rig.create(request("node_b"))
        assert refused.value.closes == (OFFERING,)
        assert refused.value.until > rig.clock()
        assert [node.node_id for node in rig.list()] == ["node_a"]

    @pytest.mark.parametrize("offering", [None, "", "cpu-spot/any/on-demand", "none/any/spot", "a100"])
    def test_what_is_no_group_is_refused_without_a_request(
        self, rig: KubeRayRig, offering: str | None
    ) -> None:
        wanted = NodeRequest(node_id="node_a", pool="cpu", resources={"CPU": 1.0}, offering=offering)
        with pytest.raises(InvalidRequest, match="REMORA_KUBERAY_FILE"):
            rig.create(wanted)
        assert rig.server.requests == []

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda spec: spec["workerGroupSpecs"].pop(0), "no worker group"),
            (lambda spec: spec["workerGroupSpecs"][0].update(numOfHosts=2), "numOfHosts"),
            (lambda spec: spec.update(enableInTreeAutoscaling=True), "enableInTreeAutoscaling"),
            (lambda spec: spec["workerGroupSpecs"][0].update(minReplicas=1), "set minReplicas to 0"),
        ],
        ids=["gone", "hosts", "autoscaled", "least"],
    )
    def test_a_cluster_that_cannot_have_our_nodes_is_said(
        self, rig: KubeRayRig, change: Any, said: str
    ) -> None:
        change(rig.world.cluster["spec"])
        with pytest.raises(InvalidRequest, match=said):
            rig.create(request())
        assert rig.list() == []

    def test_the_quota_of_one_group_is_none_of_the_others(self, rig: KubeRayRig) -> None:
        """KubeRay's report names the pod that it could not make."""
        rig.world.quota = 1
        rig.create(request("node_a"))
        other = NodeRequest(
            node_id="node_b", pool="gpu", resources={"GPU": 1.0}, offering="a100-spot/any/spot"
        )
        rig.create(other)
        third = NodeRequest(
            node_id="node_c", pool="gpu", resources={"GPU": 1.0}, offering="a100/any/on-demand"
        )
        rig.create(third)
        rig.clock.passed_s = 31
        refused = {node.node_id: node.refusal for node in rig.list()}
        assert refused["node_a"] is refused["node_c"] is None
        assert isinstance(refused["node_b"], QuotaExceeded)
        assert refused["node_b"].closes == ("a100-spot/any/spot",)

    @pytest.mark.parametrize("of_group", [False, True])
    def test_what_is_suspended_is_said_and_refused_until_it_goes_on(
        self, rig: KubeRayRig, of_group: bool
    ) -> None:
        rig.create(request("node_a"))
        rig.list()

        def set_suspended(value: bool) -> None:
            spec = rig.group() if of_group else rig.world.cluster["spec"]
            spec["suspend"] = value
            rig.world.look()

        set_suspended(True)
        before = rig.patches()
        node = only(rig.list())
        assert not node.is_running
        assert "is suspended" in str(node.message)
        assert isinstance(node.refusal, InsufficientCapacity)
        with pytest.raises(InsufficientCapacity, match="set suspend to false") as refused:
            rig.create(request("node_b"))
        assert refused.value.closes == (OFFERING,)
        assert rig.patches() == before
        rig.delete("node_a")
        set_suspended(False)
        rig.create(request("node_c"))
        assert only(rig.list()).is_running
        assert len(rig.world.pods) == 1

    def test_nodes_of_a_group_that_was_removed_are_dead_and_can_be_given_back(self, rig: KubeRayRig) -> None:
        rig.create(request())
        rig.list()
        rig.world.cluster["spec"]["workerGroupSpecs"].pop(0)
        assert "no worker group" in str(only(rig.list()).message)
        rig.delete("node_a")
        assert rig.list() == []


class TestOtherWriters:
    """Another controller, an operator with kubectl, KubeRay's own status: all write the same document."""

    def test_of_two_controllers_neither_loses_a_node(self, rig: KubeRayRig) -> None:
        other = rig.another()
        names = [f"node_{number}" for number in range(12)]
        with ThreadPoolExecutor(12) as threads:
            answers = list(
                threads.map(
                    lambda at: until_done(
                        lambda: (other if at % 2 else rig.kuberay).create(request(names[at]))
                    ),
                    range(12),
                )
            )
        assert answers == [None] * 12
        assert {node.node_id for node in rig.list()} == set(names)
        assert len(rig.world.pods) == 12
        assert len(set(rig.names.known)) == 12

    def test_pods_that_another_controller_has_just_asked_for_are_ours(
        self, rig: KubeRayRig, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It began when this one had read the RayCluster, and had not asked for the pods yet."""
        other, pods = rig.another(), rig.kuberay._api.pods
        asked: list[str] = []

        def late() -> Any:
            if not asked:
                asked.append("node_b")
                other.create(request("node_b"))
            return pods()

        monkeypatch.setattr(rig.kuberay._api, "pods", late)
        rig.create(request("node_a"))
        assert {node.node_id for node in rig.list()} == {"node_a", "node_b"}

    def test_a_document_that_changed_is_read_again(self, rig: KubeRayRig) -> None:
        fault = rig.fault("patch", KubernetesEffect.CHANGE_BEFORE, times=TRIES - 1)
        rig.create(request())
        assert fault.fired == TRIES - 1
        assert only(rig.list()).is_running

    @pytest.mark.parametrize("status", [409, 422])
    def test_one_that_changes_all_the_time_is_left_for_later(self, rig: KubeRayRig, status: int) -> None:
        effect = KubernetesEffect.CHANGE_BEFORE if status == 422 else KubernetesEffect.REFUSE
        rig.fault("patch", effect, status=status, reason="Conflict", times=TRIES)
        with pytest.raises(Throttled):
            rig.create(request())
        assert rig.patches() == TRIES
        assert rig.list() == []

    def test_a_list_shows_what_is_there_even_if_it_cannot_write(self, rig: KubeRayRig) -> None:
        rig.create(request())
        rig.fault("patch", KubernetesEffect.CHANGE_BEFORE, times=TRIES)
        assert only(rig.list()).is_running

    def test_a_change_that_can_never_be_is_not_tried_again(self, rig: KubeRayRig) -> None:
        rig.fault(
            "patch", status=422, reason="Invalid", message="spec.workerGroupSpecs[0]: Invalid value", times=9
        )
        with pytest.raises(InvalidRequest, match="Invalid value"):
            rig.create(request())
        assert rig.patches() == 1

    @pytest.mark.parametrize(
        "text",
        ["{", "[]", "null", '{"node_a": 1}', '{"node_a": {"group": "cpu-spot"}}', "[" * 100_000],
    )
    def test_an_annotation_that_was_spoiled_is_an_error_and_nothing_is_changed(
        self, rig: KubeRayRig, text: str
    ) -> None:
        rig.create(request())
        before = json.dumps(rig.world.cluster["spec"])
        rig.world.cluster["metadata"]["annotations"][NODES_ANNOTATION] = text
        for attempt in (rig.list, lambda: rig.create(request("node_b")), lambda: rig.delete("node_a")):
            with pytest.raises(ProviderError, match="correct it"):
                attempt()
        assert json.dumps(rig.world.cluster["spec"]) == before

    def test_a_cluster_without_annotations_gets_one(self, rig: KubeRayRig) -> None:
        del rig.world.cluster["metadata"]["annotations"]
        rig.create(request())
        assert only(rig.list()).is_running

    def test_other_annotations_and_groups_stay_as_they_are(self, rig: KubeRayRig) -> None:
        before = json.loads(json.dumps(rig.world.cluster))
        rig.create(request())
        rig.list()
        rig.delete("node_a")
        rig.list()
        after = rig.world.cluster
        assert after["metadata"]["annotations"].pop(NODES_ANNOTATION) == "{}"
        assert after["metadata"]["annotations"] == before["metadata"]["annotations"]
        after["spec"]["workerGroupSpecs"][0].pop("scaleStrategy")
        assert after["spec"] == before["spec"]

    def test_an_annotation_has_bounds(self, rig: KubeRayRig) -> None:
        labels = {f"label-{number}": "v" * 60 for number in range(60)}
        rig.group()["maxReplicas"] = 10_000

        def is_made(name: str) -> bool:
            wanted = NodeRequest(node_id=name, pool="cpu", resources={}, labels=labels, offering=OFFERING)
            try:
                rig.create(wanted)
            except QuotaExceeded:
                return False
            return True

        made = next(number for number in range(200) if not is_made(f"node_{number}"))
        with pytest.raises(QuotaExceeded, match=f"takes no more than {made} nodes"):
            rig.create(
                NodeRequest(node_id="node_x", pool="cpu", resources={}, labels=labels, offering=OFFERING)
            )
        assert made > 20
        assert len(rig.world.cluster["metadata"]["annotations"][NODES_ANNOTATION]) <= MOST_BYTES
        rig.delete("node_0")
        assert len(rig.list()) == made - 1


def until_done(ask: Callable[[], None]) -> None:
    """Ask again as long as there is no clear answer."""
    for _ in range(100):
        try:
            return ask()
        except Throttled:
            continue
    pytest.fail("there is no clear answer after a hundred tries")


class TestFailures:
    """Every answer that is no answer is one of the provider's errors, and never an empty list."""

    @pytest.mark.parametrize(
        ("fault", "error"),
        [
            ({"status": 401, "reason": "Unauthorized"}, Unauthorized),
            ({"status": 403, "reason": "Forbidden"}, Unauthorized),
            ({"status": 403, "reason": "Forbidden", "message": "exceeded quota: nodes"}, QuotaExceeded),
            ({"status": 404, "reason": "NotFound"}, InvalidRequest),
            ({"status": 429, "reason": "TooManyRequests", "retry_after": "7"}, Throttled),
            ({"status": 500}, Unanswered),
            ({"status": 503, "retry_after": "1e400"}, Unanswered),
            ({"status": 301}, InvalidRequest),
            ({"effect": KubernetesEffect.TRUNCATE}, Unanswered),
            ({"effect": KubernetesEffect.LOSE_ANSWER}, Unanswered),
            ({"effect": KubernetesEffect.GARBLE}, Unanswered),
        ],
        ids=lambda value: str(value.get("status", value.get("effect"))) if isinstance(value, dict) else "",
    )
    @pytest.mark.parametrize("at", ["get", "list"])
    def test_a_list_that_fails_says_so(
        self, rig: KubeRayRig, at: str, fault: dict[str, Any], error: type[ProviderError]
    ) -> None:
        rig.create(request())
        rig.fault(at, **fault)
        with pytest.raises(error) as failed:
            rig.list()
        assert type(failed.value) is error
        assert "\n" not in str(failed.value)
        assert only(rig.list()).is_running

    def test_a_pause_is_as_long_as_kubernetes_asks(self, rig: KubeRayRig) -> None:
        rig.fault("get", status=429, reason="TooManyRequests", retry_after="7")
        with pytest.raises(Throttled) as throttled:
            rig.list()
        assert throttled.value.retry_after_s == 7.0

    def test_an_answer_that_does_not_come_is_given_up(self, rig: KubeRayRig) -> None:
        fault = rig.fault("get", KubernetesEffect.HOLD)
        with pytest.raises(Unanswered):
            rig.another(timeout_s=0.2).list()
        fault.release.set()

    @pytest.mark.parametrize(
        "effect", [KubernetesEffect.LOSE_ANSWER, KubernetesEffect.TRUNCATE, KubernetesEffect.GARBLE]
    )
    def test_a_node_whose_answer_is_lost_is_there_once(
        self, rig: KubeRayRig, effect: KubernetesEffect
    ) -> None:
        rig.fault("patch", effect)
        with pytest.raises(Unanswered):
            rig.create(request())
        assert only(rig.list()).is_running
        rig.another().create(request())
        assert only(rig.list()).is_running
        assert len(rig.world.pods) == 1

    def test_a_deletion_whose_answer_is_lost_is_done_once(self, rig: KubeRayRig) -> None:
        for name in ("node_a", "node_b"):
            rig.create(request(name))
        rig.list()
        kept = rig.pod_of("node_b")
        rig.fault("patch", KubernetesEffect.LOSE_ANSWER)
        with pytest.raises(Unanswered):
            rig.delete("node_a")
        rig.delete("node_a")
        assert [node.node_id for node in rig.list()] == ["node_b"]
        assert rig.world.pods.keys() == {kept}

    def test_a_server_that_is_gone_is_no_empty_list(self, tmp_path: Path) -> None:
        with KubeRayRig(tmp_path) as rig:
            rig.create(request())
            url = rig.server.url
        with KubeRayRig(tmp_path) as other, pytest.raises(Unanswered):
            other.another(endpoint=url).list()

    def test_a_long_list_comes_page_by_page(self, tmp_path: Path) -> None:
        with KubeRayRig(tmp_path, rights(), page=2) as rig:
            for number in range(5):
                rig.create(request(f"node_{number}"))
            assert len(rig.list()) == 5
            rig.fault("list", status=500, page=3)
            with pytest.raises(Unanswered):
                rig.list()
            fault = rig.fault("list", status=410, reason="Expired", page=2)
            assert len(rig.list()) == 5
            assert fault.fired == 1
            rig.fault("list", status=410, reason="Expired", page=2, times=9)
            with pytest.raises(Unanswered):
                rig.list()

    def test_the_token_is_read_for_each_request_and_never_shown(
        self, rig: KubeRayRig, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        token = tmp_path / "token"
        good = token.read_text()
        for bad in ("old-token", "", "two words", "\x00\x01", "ä"):
            token.write_text(bad)
            with pytest.raises(Unauthorized) as refused:
                rig.list()
            assert not bad.strip() or bad not in str(refused.value) + caplog.text
        token.unlink()
        with pytest.raises(Unauthorized, match="token_file"):
            rig.list()
        token.write_text(good)
        assert rig.list() == []

    def test_the_server_has_to_prove_who_it_is(self, tmp_path: Path) -> None:
        authority, other = make_authority(time.time()), make_authority(time.time())
        own = tmp_path / "own.pem"
        own.write_bytes(issue(authority, "kubernetes", ["127.0.0.1"], time.time()).joined())
        (tmp_path / "ca.crt").write_bytes(authority.certificate)
        (tmp_path / "other.crt").write_bytes(other.certificate)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(own)
        with KubeRayRig(tmp_path, rights(), tls=tls) as rig:
            trusting = rig.another(authority_file=str(tmp_path / "ca.crt"))
            trusting.create(request())
            assert only(trusting.list()).is_running
            before = len(rig.server.requests)
            with pytest.raises(Unanswered, match=r"(?i)certificate"):
                rig.another(authority_file=str(tmp_path / "other.crt")).list()
            assert len(rig.server.requests) == before, "no token was shown to it"

    def test_no_authority_is_said(self, rig: KubeRayRig, tmp_path: Path) -> None:
        with pytest.raises(Unauthorized, match="authority_file"):
            rig.another(endpoint="https://127.0.0.1:1", authority_file=str(tmp_path / "none"))


def test_the_role_allows_what_the_provider_asks_for_and_nothing_else(rig: KubeRayRig) -> None:
    rig.create(request())
    rig.list()
    rig.delete("node_a")
    assert rig.server.used == set(rights())


def test_without_any_one_right_the_provider_says_so(tmp_path: Path) -> None:
    for missing in rights():
        others = [one for one in rights() if one != missing]
        with (
            KubeRayRig(tmp_path, others) as rig,
            pytest.raises(Unauthorized, match=f"cannot {missing[0]}"),
        ):
            rig.create(request())


@pytest.mark.parametrize("seed", range(4))
def test_whatever_happens_no_node_loses_its_pod_and_none_is_left(tmp_path: Path, seed: int) -> None:
    """A seeded walk through requests, lost answers, evictions, restarts and slow ends of pods."""
    chance = random.Random(seed)
    with KubeRayRig(tmp_path, rights(), page=3) as rig:
        walk = _Walk(rig, chance)
        for _ in range(60):
            walk.step()
        walk.end()


class _Walk:
    """What is expected: nodes that were not given back and whose pods we did not end are running."""

    def __init__(self, rig: KubeRayRig, chance: random.Random) -> None:
        self._rig, self._chance = rig, chance
        self._wanted: set[str] = set()
        self._lost: set[str] = set()
        self._number = 0

    def step(self) -> None:
        rig, chance = self._rig, self._chance
        with rig.server.lock:
            rig.world.lingers = chance.random() < 0.5
            rig.world.operator_runs = chance.random() < 0.8
            if chance.random() < 0.2:
                rig.world.finish()
        if chance.random() < 0.25:
            rig.fault("patch", chance.choice([KubernetesEffect.LOSE_ANSWER, KubernetesEffect.CHANGE_BEFORE]))
        kind = chance.choice(["create", "create", "delete", "end", "look", "restart"])
        if kind == "restart":
            rig.kuberay = rig.another()
        elif kind == "create":
            self._number += 1
            self._wanted.add(f"node_{self._number:03d}")
            self._try(lambda: rig.create(request(f"node_{self._number:03d}")))
        elif kind == "delete" and self._wanted:
            name = chance.choice(sorted(self._wanted))
            self._wanted.discard(name)
            self._try(lambda: rig.delete(name))
        elif kind == "end":
            self._end_one()
        self._look()

    def _try(self, ask: Any) -> None:
        """As the scale loop does: again until it is clear."""
        until_done(ask)

    def _end_one(self) -> None:
        with self._rig.server.lock:
            claims = read_claims(self._rig.world.cluster["metadata"]["annotations"].get(NODES_ANNOTATION))
            owned = sorted(one.pod for one in claims.values() if one.pod in self._rig.world.pods)
            if owned:
                pod = self._chance.choice(owned)
                self._lost |= {one.node_id for one in claims.values() if one.pod == pod}
                end = self._rig.world.take if self._chance.random() < 0.5 else self._rig.world.fail
                end(pod)

    def _look(self) -> None:
        nodes: list[ProvidedNode] = []
        self._try(lambda: nodes.extend(self._rig.list()))
        assert {node.node_id for node in nodes} == self._wanted
        dead = {node.node_id for node in nodes if not node.is_running}
        assert dead <= self._lost, "KubeRay ended a pod that we did not name"

    def end(self) -> None:
        rig = self._rig
        rig.server.faults.clear()
        for name in sorted(self._wanted):
            rig.delete(name)
        rig.world.operator_runs, rig.world.lingers = True, False
        rig.world.finish()
        for _ in range(3):
            rig.clock.passed_s += 61
            assert rig.list() == []
        assert rig.world.pods == {}
        assert [group["replicas"] for group in rig.world.cluster["spec"]["workerGroupSpecs"]] == [0, 0, 0]


def test_a_process_that_is_killed_between_two_writes_leaves_what_the_next_one_completes(
    rig: KubeRayRig,
) -> None:
    """The claim is written and no pod was given; the pod is given and was not named; the pod is named and not gone."""
    rig.create(request("node_a"))
    rig.another().list()
    assert rig.names.known.keys() == {rig.pod_of("node_a")}
    rig.names.known.clear()
    rig.another().list()
    assert rig.names.known.keys() == {rig.pod_of("node_a")}
    rig.world.operator_runs = False
    rig.delete("node_a")
    rig.world.operator_runs = True
    rig.world.look()
    assert rig.another().list() == []
    assert rig.world.pods == {}


def test_threads_of_one_process_do_not_disturb_each_other(rig: KubeRayRig) -> None:
    begun = threading.Barrier(8)

    def ask(number: int) -> None:
        begun.wait()
        rig.create(request(f"node_{number}"))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(ask, range(8)))
    assert rig.patches() == 8
    assert len(rig.list()) == 8
