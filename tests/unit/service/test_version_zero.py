"""Version 0 of the policies, and what documents are held against, in each cloud."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster.existing.provider import NODE
from cluster.policies.documents import read_document
from cluster.policies.policies import CapacityRule, Policies
from cluster.policies.policy_problems import PoliciesRefused
from service.clouds.azure_settings import read_azure_settings
from service.clouds.fixed_pool import fixed_pool, known
from service.embedded.emulated_azure import emulated_azure_settings, write_azure_settings
from service.queue.full_pools import kept_full
from service.settings import Settings

OF_AZURE = "pools: {gpu: {sizes: [Standard_NC24ads_A100_v4], zones: [2], max_nodes: 200}}"
OF_HERE = "pools: {here: {sizes: [local], capacity: on-demand}}"


@pytest.fixture
def local(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, cloud="local", nodes=5, azure_file=None)


@pytest.fixture
def emulated(tmp_path: Path) -> Settings:
    settings = Settings(home=tmp_path, cloud="azure-emulated", nodes=5, azure_file=None)
    write_azure_settings(settings.azure, emulated_azure_settings("http://127.0.0.1:7266"))
    return settings


def first(settings: Settings) -> Policies:
    """Version 0, held against what is known."""
    return read_document(fixed_pool(settings).document, known(settings))


def test_on_this_machine_a_pool_is_kept(local: Settings) -> None:
    (pool,) = first(local).pools.values()
    assert (pool.sizes, pool.min_nodes, pool.max_nodes) == (("local",), 5, 5)


def test_in_azure_cheap_machines_come_while_jobs_need_them_and_go_soon(emulated: Settings) -> None:
    (pool,) = first(emulated).pools.values()
    assert (pool.sizes, pool.min_nodes, pool.max_nodes) == (("Standard_D4s_v5",), 0, 5)
    assert pool.capacity is CapacityRule.PREFER_SPOT
    assert max(pool.idle_s, pool.patience_s) <= 60


def test_sizes_are_held_against_what_the_cloud_sells(local: Settings, emulated: Settings) -> None:
    assert read_document(OF_AZURE, known(emulated)).pools["gpu"].max_nodes == 200
    with pytest.raises(PoliciesRefused, match="no size 'local' is known"):
        read_document(OF_HERE, known(emulated))
    assert read_document(OF_HERE, known(local))
    with pytest.raises(PoliciesRefused, match="no size 'Standard_NC24ads_A100_v4' is known"):
        read_document(OF_AZURE, known(local))


def test_while_the_place_is_not_known_nothing_is_said_about_sizes(tmp_path: Path) -> None:
    nowhere = Settings(home=tmp_path, cloud="azure", azure_file=None)
    assert known(nowhere).catalogue is None
    assert first(nowhere).pools.keys() == {"cpu"}


def test_the_emulators_place_is_read_as_it_was_written_and_leaves_the_real_one_alone(
    emulated: Settings,
) -> None:
    assert read_azure_settings(emulated) == emulated_azure_settings("http://127.0.0.1:7266")
    real = emulated.model_copy(update={"cloud": "azure"})
    assert real.azure != emulated.azure
    assert real.azure.name == "azure.json"


def test_on_an_existing_cluster_one_pool_has_what_is_there(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, cloud="existing")
    (pool,) = first(settings).pools.values()
    assert (pool.sizes, pool.min_nodes) == ((NODE,), 0)
    for found, most in ((3, 3), (0, 0), (5000, pool.max_nodes)):
        (kept,) = kept_full(first(settings), 0.0, NODE, found).pools.values()
        assert (kept.sizes, kept.min_nodes, kept.max_nodes) == ((NODE,), most, most)
