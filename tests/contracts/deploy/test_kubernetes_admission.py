"""The rules by which Kubernetes admits a change of the RayCluster by the controller, evaluated as it evaluates them."""

from __future__ import annotations

import copy
import itertools
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.kuberay.pod_claims import NODES_ANNOTATION
from tests.architecture.repository import ROOT
from tests.contracts.cluster.kuberay_rig import KubeRayRig, manifests, request
from tests.needed import is_missing

PYTHON = ROOT / ".venv-kubernetes/bin/python"
#: Reads expressions and pairs of documents, and prints for each pair whether all expressions hold.
PROGRAM = """
import json, sys, celpy
asked = json.load(sys.stdin)
environment = celpy.Environment()
rules = [environment.program(environment.compile(text)) for text in asked["expressions"]]
request = {"operation": "UPDATE", "subResource": "", "userInfo": {"username": asked["user"]}}
def holds(rule, names):
    try:
        return bool(rule.evaluate(names))
    except celpy.CELEvalError:
        return False
for before, after in asked["pairs"]:
    documents = {"object": after, "oldObject": before, "request": request}
    names = {name: celpy.json_to_cel(one) for name, one in documents.items()}
    print(json.dumps(all(holds(rule, names) for rule in rules)))
"""


def policy() -> dict[str, Any]:
    (found,) = manifests("ValidatingAdmissionPolicy")
    spec: dict[str, Any] = found["spec"]
    return spec


def user() -> str:
    """The name of the account that has the role."""
    (binding,) = manifests("RoleBinding")
    (subject,) = binding["subjects"]
    return f"system:serviceaccount:{subject['namespace']}:{subject['name']}"


def test_the_policy_is_bound_and_is_about_the_account_that_may_patch() -> None:
    (found,) = manifests("ValidatingAdmissionPolicy")
    (binding,) = manifests("ValidatingAdmissionPolicyBinding")
    assert binding["spec"] == {"policyName": found["metadata"]["name"], "validationActions": ["Deny"]}
    (condition,) = policy()["matchConditions"]
    assert condition["expression"] == f'request.userInfo.username == "{user()}"'
    assert policy()["failurePolicy"] == "Fail"
    assert all(NODES_ANNOTATION in one["message"] for one in policy()["validations"][1:3])


def _with(change: Callable[[dict[str, Any], dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    """A change of the document, which is given with its first group."""
    return lambda document: change(document, document["spec"]["workerGroupSpecs"][0])


REFUSED = {
    "template": _with(lambda _, group: group["template"]["spec"].update(hostNetwork=True)),
    "bound": _with(lambda _, group: group.update(maxReplicas=9999)),
    "a new field": _with(lambda _, group: group.update(suspend=True)),
    "a field less": _with(lambda _, group: group.pop("numOfHosts")),
    "a group less": _with(lambda document, _: document["spec"]["workerGroupSpecs"].pop()),
    "a group twice": _with(
        lambda document, group: document["spec"]["workerGroupSpecs"].__setitem__(1, group)
    ),
    "another name": _with(lambda _, group: group.update(groupName="x")),
    "head": _with(lambda document, _: document["spec"]["headGroupSpec"].update(serviceType="LoadBalancer")),
    "autoscaler": _with(lambda document, _: document["spec"].update(enableInTreeAutoscaling=True)),
    "no version": _with(lambda document, _: document["spec"].pop("rayVersion")),
    "another annotation": _with(lambda document, _: document["metadata"]["annotations"].update(x="y")),
    "no annotations": _with(lambda document, _: document["metadata"].pop("annotations")),
    "labels": _with(lambda document, _: document["metadata"].update(labels={"a": "b"})),
    "finalizers": _with(lambda document, _: document["metadata"].update(finalizers=["a"])),
}


def own_changes(folder: Path) -> list[list[dict[str, Any]]]:
    """The RayCluster before and after each of the provider's own requests."""
    states = []
    with KubeRayRig(folder) as rig:
        for ask in (
            lambda: rig.create(request("node_a")),
            lambda: rig.create(request("node_b")),
            rig.list,
            lambda: rig.delete("node_a"),
            rig.list,
        ):
            states.append(copy.deepcopy(rig.world.cluster))
            ask()
        states.append(copy.deepcopy(rig.world.cluster))
    pairs = [[before, {**after, "status": before["status"]}] for before, after in itertools.pairwise(states)]
    assert any(before["spec"] != after["spec"] for before, after in pairs)
    return pairs


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_the_controllers_own_changes_are_admitted_and_all_others_are_not(tmp_path: Path) -> None:
    made = subprocess.run(["make", "kubernetes-validate"], cwd=ROOT, capture_output=True, text=True)
    if made.returncode != 0:
        is_missing(f"cel-python cannot be installed here: {made.stderr.strip().splitlines()[-1:]}")
    pairs = own_changes(tmp_path)
    admitted = len(pairs)
    before = pairs[-1][0]
    for change in REFUSED.values():
        after = copy.deepcopy(before)
        change(after)
        pairs.append([before, after])
    asked = {
        "expressions": [one["expression"] for one in policy()["validations"]],
        "user": user(),
        "pairs": pairs,
    }
    done = subprocess.run([PYTHON, "-c", PROGRAM], input=json.dumps(asked), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said[:admitted] == [True] * admitted
    assert dict(zip(REFUSED, said[admitted:], strict=True)) == dict.fromkeys(REFUSED, False)
