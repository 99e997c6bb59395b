"""Sizes with GPUs of AMD are refused wherever an operator may name them, and no others."""

from __future__ import annotations

import pytest

from cluster.azure.catalogue import SIZES
from cluster.azure.catalogue_file import CatalogueRefused, read_sizes
from cluster.policies.amd_sizes import why_refused


@pytest.mark.parametrize(
    "size",
    [
        "Standard_ND96isr_MI300X_v5",
        "Standard_ND96is_MI300X_v5",
        "standard_nd96isr_mi300x_v5",
        "Standard_ND128isr_MI355X_v6",
        "Standard_NV4as_v4",
        "Standard_NV32as_v4",
        "Standard_NG32adms_V620_v1",
        "Standard_NV28adms_V710_v5",
        "Standard_NV28adms_V710_v5@west",
    ],
)
def test_each_series_of_azure_with_gpus_of_amd_is_known(size: str) -> None:
    why = why_refused(size)
    assert why is not None
    assert why.startswith(f"{size} has GPUs of AMD, on which Remora does not train")


def test_nothing_of_the_table_is_refused_nor_sizes_with_processors_of_amd() -> None:
    named = [
        *((size.name, size.gpu) for size in SIZES),
        ("Standard_D4as_v5", ""),
        ("Standard_NC6s_v3", "V100"),
    ]
    assert [name for name, gpu in named if why_refused(name, gpu) is not None] == []


@pytest.mark.parametrize(("name", "gpu"), [("Standard_NV8as_v4", "M25"), ("Standard_New_v9", "MI400X")])
def test_an_operators_own_size_with_one_is_refused_by_its_name_or_by_the_model_of_its_gpus(
    name: str, gpu: str
) -> None:
    text = f"sizes: {{{name}: {{cpus: 8, memory_gib: 28, gpus: 1, gpu: {gpu}, on_demand_usd: 0.4}}}}"
    with pytest.raises(CatalogueRefused, match=f"{name} has GPUs of AMD"):
        read_sizes(text)
