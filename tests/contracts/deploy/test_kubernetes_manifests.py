"""The manifests of deploy/kubernetes: the service reads what they give to it, and Kubernetes knows all of it."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.head.commands import Part
from cluster.kuberay.settings import KubeRaySettings
from cluster.node.pod import NEEDED
from cluster.policies.offerings import CapacityType
from service.listening import isolation_of, listening
from service.settings import Settings
from tests.architecture.repository import ROOT
from tests.contracts.cluster.kuberay_rig import MANIFESTS, every_manifest, manifests, place
from tests.needed import is_missing

#: The release of Kubernetes that the manifests are written for.
KUBERNETES = "1.33.0"
PROGRAM = ROOT / ".venv-kubernetes/bin/kubernetes-validate"
SPOT = "kubernetes.azure.com/scalesetpriority"


def named(kind: str, name: str) -> dict[str, Any]:
    """The one document of this kind and name."""
    (found,) = [one for one in manifests(kind) if one["metadata"]["name"] == name]
    return found


def variables() -> dict[str, str]:
    """The settings of the service."""
    data: dict[str, str] = named("ConfigMap", "remora-settings")["data"]
    return data


def ray_cluster() -> dict[str, Any]:
    (found,) = manifests("RayCluster")
    return found


def templates() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every template of a pod, with a name."""
    for kind in ("Deployment", "StatefulSet"):
        for one in manifests(kind):
            yield one["metadata"]["name"], one["spec"]["template"]
    spec = ray_cluster()["spec"]
    yield "head", spec["headGroupSpec"]["template"]
    for group in spec["workerGroupSpecs"]:
        yield group["groupName"], group["template"]


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Every container, with its name and its pod."""
    for name, template in templates():
        pod = template["spec"]
        for one in (*pod.get("initContainers", []), *pod["containers"]):
            yield f"{name}/{one['name']}", one, pod


def service_settings(monkeypatch: pytest.MonkeyPatch) -> Settings:
    for name, value in variables().items():
        monkeypatch.setenv(name, value)
    return Settings()


def test_every_setting_is_one_that_the_service_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {f"REMORA_{field.upper()}" for field in Settings.model_fields}
    assert variables().keys() <= fields
    settings = service_settings(monkeypatch)
    assert settings.cloud == "kuberay"
    found = listening(settings)
    assert found.is_public
    assert found.certificate is not None
    assert isolation_of(settings) == "none", "a pod without root gives jobs no users of their own"


def test_files_that_settings_name_are_mounted_where_they_are_read() -> None:
    api = next(one for name, one, _ in containers() if name == "remora-api/api")
    controller = next(one for name, one, _ in containers() if name == "remora-controller/controller")
    for name, path in variables().items():
        if not path.startswith("/etc/"):
            continue
        folder = str(Path(path).parent)
        readers = [api] if name.startswith("REMORA_TLS") else [api, controller]
        for one in readers:
            assert folder in [mount["mountPath"] for mount in one["volumeMounts"]], name
    assert place(), "the place is the file of that name"
    assert variables()["REMORA_KUBERAY_FILE"].endswith("/kuberay.yaml")


def test_the_place_is_the_ray_cluster_of_these_manifests() -> None:
    settings = KubeRaySettings.model_validate(place())
    cluster = ray_cluster()
    assert (settings.namespace, settings.cluster) == (
        cluster["metadata"]["namespace"],
        cluster["metadata"]["name"],
    )
    groups = {one["groupName"]: one for one in cluster["spec"]["workerGroupSpecs"]}
    assert groups.keys() == {group.name for group in settings.groups}
    assert cluster["spec"]["enableInTreeAutoscaling"] is False
    for group in settings.groups:
        spec = groups[group.name]["template"]["spec"]
        assert (groups[group.name]["replicas"], groups[group.name]["numOfHosts"]) == (0, 1)
        is_spot = spec["nodeSelector"].get(SPOT) == "spot"
        assert is_spot is (group.capacity is CapacityType.SPOT)
        assert is_spot is any(one["key"] == SPOT for one in spec.get("tolerations", []))
        asked = spec["containers"][0]["resources"]["requests"]
        assert group.resources["CPU"] <= float(asked["cpu"])
        assert group.resources.get("GPU", 0) == float(asked.get("nvidia.com/gpu", 0))
        assert group.resources["memory"] < int(asked["memory"].removesuffix("Gi")) * 2**30


def test_ports_and_names_are_the_same_everywhere() -> None:
    (api,) = named("Deployment", "remora-api")["spec"]["template"]["spec"]["containers"]
    port = int(variables()["REMORA_PORT"])
    assert [one["containerPort"] for one in api["ports"]] == [port]
    (rule,) = named("NetworkPolicy", "api")["spec"]["ingress"]
    assert [one["port"] for one in rule["ports"]] == [port]
    (service,) = manifests("Service")
    assert service["spec"]["ports"][0]["targetPort"] == api["ports"][0]["name"]
    head = f"{ray_cluster()['metadata']['name']}-head-svc:6379"
    assert variables()["REMORA_RAY_ADDRESS"] == head
    for name, one, _ in containers():
        arguments = one.get("args", [])
        if "--head" in arguments and not name.startswith("head/"):
            assert arguments[arguments.index("--head") + 1] == head, name
        if name.endswith("/ray-worker"):
            assert {"name": "REMORA_HEAD", "value": head} in one["env"]
    (gcs,) = ray_cluster()["spec"]["headGroupSpec"]["template"]["spec"]["containers"]
    assert gcs["ports"][0]["containerPort"] == 6379


def test_what_containers_start_is_there() -> None:
    for name, one, _ in containers():
        command = one["command"]
        if command[0] != "python":
            assert command[0] == "install", name
            continue
        assert command[:3] == ["python", "-P", "-m"], name
        assert find_spec(command[3]) is not None, name
        if command[3] == "cluster.head":
            assert (command[4:] or one["args"])[0] in [str(part) for part in Part], name
        if command[3] == "cluster.node.pod":
            assert set(NEEDED) <= {variable["name"] for variable in one["env"]}, name


def test_no_process_is_root_or_may_become_it() -> None:
    for name, one, pod in containers():
        context = dict(one["securityContext"])
        assert context.pop("runAsUser", 1) > 0, name
        assert context == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, name
        of_pod = pod["securityContext"]
        assert of_pod["runAsNonRoot"] is True, name
        assert of_pod["runAsUser"] > 0, name
        assert of_pod["seccompProfile"] == {"type": "RuntimeDefault"}, name
        assert one["resources"]["requests"].keys() >= {"cpu", "memory"}, name
        assert "memory" in one["resources"]["limits"], name
    (namespace,) = manifests("Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_controllers_container_alone_shows_anything_to_kubernetes() -> None:
    account = "/var/run/secrets/kubernetes.io/serviceaccount"
    for name, one, pod in containers():
        assert pod["automountServiceAccountToken"] is False, name
        has_token = account in [mount["mountPath"] for mount in one["volumeMounts"]]
        assert has_token is (name == "remora-controller/controller"), name
    assert all(one["automountServiceAccountToken"] is False for one in manifests("ServiceAccount"))
    (binding,) = manifests("RoleBinding")
    assert [one["name"] for one in binding["subjects"]] == ["remora-controller"]
    assert manifests("ClusterRole") == manifests("ClusterRoleBinding") == []


def test_the_database_is_shown_to_the_service_alone() -> None:
    for name, one, _ in containers():
        has = any(variable["name"] == "REMORA_DATABASE_URL" for variable in one.get("env", []))
        assert has is (name in ("remora-api/api", "remora-controller/controller")), name


def test_the_node_beside_a_controller_is_another_user_and_shares_the_sockets_of_ray_alone() -> None:
    """What runs on it with another user finds nothing: tests/integration/cluster/test_member_of_a_server.py."""
    pod = named("Deployment", "remora-controller")["spec"]["template"]["spec"]
    every = {one["name"]: one for one in (*pod["containers"], *pod["initContainers"])}
    users = {
        name: one["securityContext"].get("runAsUser", pod["securityContext"]["runAsUser"])
        for name, one in every.items()
    }
    assert users["controller"] == users["secret"] != users["member"] == users["secret-of-member"]
    assert all("runAsGroup" not in one["securityContext"] for one in every.values()), (
        "they have a group together"
    )
    assert "--with-group" in every["member"]["args"]
    shown = {name: {mount["name"] for mount in one["volumeMounts"]} for name, one in every.items()}
    assert shown["controller"] & shown["member"] == {"ray", "shm"}
    assert {"name": "ray", "mountPath": "/ray"} in every["member"]["volumeMounts"]
    assert {"name": "TMPDIR", "value": "/ray"} in every["member"]["env"]
    assert "envFrom" not in every["member"]


def test_a_pod_is_alive_before_its_ray_has_begun_and_not_when_that_is_gone(tmp_path: Path) -> None:
    for _, one, _ in containers():
        if one["name"] != "ray-worker":
            continue
        command = [
            word.replace("/run/remora", str(tmp_path)) for word in one["livenessProbe"]["exec"]["command"]
        ]
        file = tmp_path / "ray.pid"
        file.unlink(missing_ok=True)
        assert subprocess.run(command).returncode == 0
        with subprocess.Popen(["sleep", "60"]) as ray:
            file.write_text(str(ray.pid))
            assert subprocess.run(command).returncode == 0
            ray.kill()
        assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode != 0


def test_jobs_reach_no_metadata_service() -> None:
    (rule,) = named("NetworkPolicy", "outside")["spec"]["egress"]
    assert "169.254.0.0/16" in rule["to"][0]["ipBlock"]["except"]
    denied = named("NetworkPolicy", "default-deny")["spec"]
    assert (denied["podSelector"], denied["policyTypes"]) == ({}, ["Ingress", "Egress"])


def test_budgets_and_policies_are_of_pods_that_there_are() -> None:
    labels = [template["metadata"]["labels"] for _, template in templates()]
    for one in (*manifests("PodDisruptionBudget"), *manifests("NetworkPolicy"), *manifests("Service")):
        selector = one["spec"].get("selector", one["spec"].get("podSelector", {}))
        wanted = selector.get("matchLabels", selector if one["kind"] == "Service" else {})
        assert any(wanted.items() <= of.items() for of in labels), one["metadata"]["name"]
        for expression in selector.get("matchExpressions", []):
            there = {of[expression["key"]] for of in labels}
            assert set(expression["values"]) <= there, one["metadata"]["name"]


def test_the_page_names_every_secret_that_has_to_be_made() -> None:
    text = (ROOT / "docs/kubernetes.md").read_text()
    needed = set(
        re.findall(r"secretName: ([a-z-]+)", "".join(p.read_text() for p in MANIFESTS.glob("*.yaml")))
    )
    needed |= {"remora-database"}
    assert needed == set(re.findall(r"create secret (?:generic|tls) ([a-z-]+)", text))


def test_each_file_is_in_the_kustomization() -> None:
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())
    files = {path.name for path in MANIFESTS.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_kubernetes_knows_every_field(tmp_path: Path) -> None:
    made = subprocess.run(["make", "kubernetes-validate"], cwd=ROOT, capture_output=True, text=True)
    if made.returncode != 0:
        is_missing(f"kubernetes-validate cannot be installed here: {made.stderr.strip().splitlines()[-1:]}")
    plain = [one for one in every_manifest() if one["kind"] not in ("RayCluster", "Kustomization")]
    # KubeRay's own kind has no schema there; its templates are pods, and so are all others.
    pods = [
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": template["spec"]}
        for name, template in templates()
    ]
    done = _validated(tmp_path, [*plain, *pods])
    assert done.returncode == 0, done.stdout + done.stderr
    # It finds what is wrong.
    wrong = json.loads(json.dumps(pods[0]))
    wrong["spec"]["containers"][0]["livenessProb"] = {}
    assert _validated(tmp_path, [wrong]).returncode != 0


def _validated(folder: Path, documents: list[dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    file = folder / "documents.yaml"
    file.write_text(yaml.safe_dump_all(documents))
    return subprocess.run(
        [PROGRAM, "--strict", "--kubernetes-version", KUBERNETES, str(file)], capture_output=True, text=True
    )
