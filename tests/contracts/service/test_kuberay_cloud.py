"""The service with `REMORA_CLOUD=kuberay`: its provider, its offerings, its first policies, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.policies.documents import read_stored
from cluster.ray.membership import RayMembership
from remora.spec.spec import JobSpec
from service.clouds.clouds import cloud_of
from service.clouds.fixed_pool import fixed_pool, known
from service.clouds.place_files import CloudUnusable
from service.embedded.emulated_azure import cloud_problem
from service.images import NoImages, check_image
from service.mounts import NoMounts, check_mounts
from service.secrets.key_vault import VaultRefused, _identity
from service.settings import Settings
from tests.contracts.cluster.kuberay_rig import OFFERING, KubeRayRig, request


def settings(folder: Path, **more: Any) -> Settings:
    return Settings(home=folder, cloud="kuberay", nodes=5, **more)


def write(folder: Path, document: object) -> None:
    (folder / "kuberay.yaml").write_text(yaml.safe_dump(document))


def test_the_file_of_the_place_makes_the_cloud(tmp_path: Path) -> None:
    with KubeRayRig(tmp_path) as rig:
        write(tmp_path, rig.settings().model_dump(mode="json"))
        cloud = cloud_of(settings(tmp_path), "head:6379", RayMembership())
        try:
            assert OFFERING in [one.id for one in cloud.supply.offerings()]
            cloud.provider.create(request())
            # No Ray is connected here: the list is whole all the same.
            assert [node.node_id for node in cloud.provider.list()] == ["node_a"]
            assert cloud.follows_policies
            assert cloud.observation_interval_s() > 0
        finally:
            cloud.close()


def test_without_policies_there_is_one_pool_of_all_groups(tmp_path: Path) -> None:
    with KubeRayRig(tmp_path) as rig:
        write(tmp_path, rig.settings().model_dump(mode="json"))
        groups = [group.name for group in rig.settings().groups]
    policies = read_stored(fixed_pool(settings(tmp_path)).document)
    (pool,) = policies.pools.values()
    assert (list(pool.sizes), pool.max_nodes) == (groups, 5)
    catalogue = known(settings(tmp_path)).catalogue
    assert catalogue is not None
    assert [one.size for one in catalogue] == groups


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "docs/kubernetes.md"),
        ("[]", "no mapping"),
        ("{", "cannot be read"),
        ("x" * (2**20 + 1), "longer than"),
        ("namespace: remora\ncluster: ../x\ngroups: []\n", "cluster"),
        ("namespace: remora\ncluster: c\nendpoint: http://example.com\ngroups: []\n", "endpoint"),
        ("namespace: n\ncluster: c\ngroups: [{name: g, capacity: free}]\n", "capacity"),
    ],
)
def test_a_file_that_is_no_place_is_said_in_one_sentence(tmp_path: Path, text: str | None, said: str) -> None:
    if text is not None:
        (tmp_path / "kuberay.yaml").write_text(text)
    with pytest.raises(CloudUnusable, match=said) as unusable:
        cloud_of(settings(tmp_path), "head:6379", RayMembership())
    assert "\n" not in str(unusable.value)
    assert known(settings(tmp_path)).catalogue is None
    assert fixed_pool(settings(tmp_path)).document


def test_a_controller_outside_of_a_pod_says_what_it_lacks(tmp_path: Path) -> None:
    with KubeRayRig(tmp_path) as rig:
        place = rig.settings().model_dump(mode="json")
    write(tmp_path, {**place, "endpoint": "https://127.0.0.1:1", "authority_file": str(tmp_path / "none")})
    with pytest.raises(CloudUnusable, match="authority_file"):
        cloud_of(settings(tmp_path), "head:6379", RayMembership())


def test_remora_up_says_where_pods_can_be_had(tmp_path: Path) -> None:
    assert "docs/kubernetes.md" in str(cloud_problem(settings(tmp_path)))


def test_what_pods_cannot_do_is_refused_at_submission(tmp_path: Path) -> None:
    image = JobSpec.from_mapping({"command": "python a.py", "environment": {"image": "example.com/x:1"}})
    with pytest.raises(NoImages, match="pods"):
        check_image(settings(tmp_path), image)
    mount = JobSpec.from_mapping(
        {"command": "python a.py", "inputs": {"data": {"store": "cloud", "path": "x", "mode": "mount"}}}
    )
    with pytest.raises(NoMounts, match="pods"):
        check_mounts(settings(tmp_path, stores={"cloud": "abfs://a/b"}), mount)
    with pytest.raises(VaultRefused, match="by its value"):
        _identity(settings(tmp_path))


def test_workers_of_pods_are_started_by_ray(tmp_path: Path) -> None:
    assert settings(tmp_path).forked_modules == ""
