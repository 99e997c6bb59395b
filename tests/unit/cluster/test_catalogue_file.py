"""Sizes of machines that operators add by a file: what they become, and what is wrong with a file, in sentences."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from cluster.azure.catalogue import BY_NAME, offerings
from cluster.azure.catalogue_file import MAX_FILE, MAX_SIZES, CatalogueRefused, read_sizes, with_own
from cluster.policies.documents import read_document
from cluster.policies.offerings import CapacityType
from cluster.policies.policy_problems import PoliciesRefused
from service.clouds.fixed_pool import known
from service.clouds.own_sizes import sizes_of
from service.clouds.place_files import CloudUnusable
from service.embedded.emulated_azure import cloud_problem, emulated_azure_settings, write_azure_settings
from service.settings import Settings

V100 = "Standard_NC6s_v3"
FILE = f"""\
sizes:
  {V100}:
    cpus: 6
    memory_gib: 112
    gpus: 1
    gpu: V100
    gpu_memory_gib: 16
    on_demand_usd: 3.06
    spot_usd: 0.5
    family: standardNCSv3Family
    zones: ["1", "2"]
  Standard_E8s_v5: {{cpus: 8, memory_gib: 64, on_demand_usd: 1, spot: false}}
"""
OF_OWN = f"pools: {{gpu: {{sizes: [{V100}], zones: ['2'], max_nodes: 4}}}}"


def refused(text: str) -> str:
    with pytest.raises(CatalogueRefused) as error:
        read_sizes(text)
    return str(error.value)


def entry(**values: object) -> str:
    filled = {"cpus": 6, "memory_gib": 112, "on_demand_usd": 3.06, **values}
    lines = "".join(f"    {name}: {value}\n" for name, value in filled.items() if value is not None)
    return f"sizes:\n  {V100}:\n{lines}"


def test_a_size_of_the_file_is_offered_as_one_of_the_table() -> None:
    sold = {one.id: one for one in offerings("westeurope", sizes=with_own(read_sizes(FILE)).values())}
    own = [one for one in sold if one.startswith(V100)]
    assert len(own) == 2 * 3, "spot and on demand, in two zones and in none"
    spot = sold[f"{V100}/2/spot"]
    assert (spot.resources["CPU"], spot.resources["GPU"], spot.price_per_hour) == (6.0, 1.0, 0.5)
    assert spot.labels == {"azure-gpu": "V100", "azure-gpu-memory-gib": "16"}
    on_demand = sold[f"{V100}/any/on-demand"]
    assert (on_demand.quota, on_demand.quota_units) == ("standardNCSv3Family", 6)
    assert on_demand.price_per_hour == 3.06, "the price is the operator's own, in whatever region"
    assert {one.capacity for one in sold.values() if one.size == "Standard_E8s_v5"} == {
        CapacityType.ON_DEMAND
    }


def test_a_size_of_the_table_is_replaced_by_its_own_name() -> None:
    text = "sizes: {Standard_D4s_v5: {cpus: 4, memory_gib: 16, on_demand_usd: 0.1}}"
    table = with_own(read_sizes(text))
    assert len(table) == len(BY_NAME)
    assert table["Standard_D4s_v5"].on_demand_usd == 0.1
    assert "is Standard_D4s_v5 in another case" in refused(text.replace("D4s", "d4S"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a catalogue is a mapping"),
        ("sizes: []", "a catalogue is a mapping"),
        ("size: {}", "a catalogue is a mapping"),
        ("sizes: {1: {}}", "1 is no name of a size"),
        ("sizes: {'Standard_../x': {}}", "is no name of a size"),
        ("sizes: {Standard_X: 3}", "sizes.Standard_X: 3 given"),
        (entry(cpus=None), f"sizes.{V100}.cpus: missing"),
        (entry(cpus="'6'"), f"sizes.{V100}.cpus"),
        (entry(cpus=0), "greater than or equal to 1"),
        (entry(on_demand_usd=0), "greater than 0"),
        (entry(on_demand_usd=".inf"), f"sizes.{V100}.on_demand_usd"),
        (entry(on_demand_usd=".nan"), f"sizes.{V100}.on_demand_usd"),
        (entry(gpus=1), "gpu has to name their model"),
        (entry(gpu="V100"), "of a size with gpus"),
        (entry(gpus=1, gpu="'a,b=c'"), f"sizes.{V100}.gpu"),
        (entry(spot="false", spot_usd=1), "spot_usd is of a size with spot"),
        (entry(zones="[4]"), f"sizes.{V100}.zones"),
        (entry(memory=3), "did you mean memory_gib?"),
        (f"sizes: {{{V100}: {{}}, {V100}: {{}}}}", "twice"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(text: str, said: str) -> None:
    found = refused(text)
    assert said in found
    assert "\n" not in found


def test_a_hostile_file_is_small_work_and_a_short_sentence() -> None:
    many = "sizes:\n" + "".join(f"  Standard_X{n}: {{}}\n" for n in range(MAX_SIZES + 1))
    assert "write at most 500" in refused(many)
    assert "is bigger than 256 KiB" in refused("x" * (MAX_FILE + 1))
    wrong = "sizes:\n" + "".join(f"  Standard_X{n}: {{cpus: no}}\n" for n in range(MAX_SIZES))
    assert len(refused(wrong)) < 20_000
    tracemalloc.start()
    laughs = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(12)
    )
    refused(laughs)
    assert tracemalloc.get_traced_memory()[1] < 32 * 2**20
    tracemalloc.stop()


def test_policies_are_held_against_the_file_and_a_change_of_it_counts_at_once(tmp_path: Path) -> None:
    path = tmp_path / "sizes.yaml"
    path.write_text(FILE)
    settings = Settings(home=tmp_path, cloud="azure-emulated", catalogue=path, azure_file=None)
    write_azure_settings(settings.azure, emulated_azure_settings("http://127.0.0.1:7266"))
    assert read_document(OF_OWN, known(settings)).pools["gpu"].max_nodes == 4
    plain = settings.model_copy(update={"catalogue": None})
    with pytest.raises(PoliciesRefused, match=f"no size '{V100}' is known"):
        read_document(OF_OWN, known(plain))
    path.write_text(FILE.replace("3.06", "4.06"))
    assert sizes_of(settings)[V100].on_demand_usd == 4.06


def test_a_file_that_cannot_be_used_keeps_the_service_from_starting(tmp_path: Path) -> None:
    path = tmp_path / "sizes.yaml"
    settings = Settings(home=tmp_path, cloud="azure-emulated", catalogue=path)
    assert "cannot be read (No such file or directory)" in (cloud_problem(settings) or "")
    path.write_bytes(b"\xff\xfe")
    assert "is not text in UTF-8" in (cloud_problem(settings) or "")
    path.write_text("sizes: 3")
    assert (cloud_problem(settings) or "").startswith(
        f"correct the catalogue {path}: a catalogue is a mapping"
    )
    with path.open("wb") as file:
        file.truncate(10 * MAX_FILE)
    assert "is bigger than 256 KiB" in (cloud_problem(settings) or "")
    with pytest.raises(CloudUnusable, match="as an absolute path"):
        sizes_of(settings.model_copy(update={"catalogue": Path("sizes.yaml")}))
