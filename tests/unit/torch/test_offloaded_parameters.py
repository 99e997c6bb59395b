"""A model whose parameters lie in host memory while GPUs compute is refused before training."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from remora.torch.sharded.building import check
from remora.torch.sharded.grid import Grid


def model_on(device: str) -> nn.Module:
    """Its weight lies in host memory and belongs to a mesh of such devices."""
    mesh = DeviceMesh(device, [0], mesh_dim_names=("shard",), _init_backend=False, _rank=0)
    weight = torch.ones(4, 3)
    kind = TensorMeta(weight.shape, weight.stride(), weight.dtype)
    model = nn.Module()
    model.weight = nn.Parameter(DTensor(weight, DTensorSpec(mesh, (Shard(0),), kind), requires_grad=False))
    return model


def test_it_is_refused_with_gpus_alone() -> None:
    check(model_on("cpu"), Grid(1, 1, 1))
    with pytest.raises(ValueError, match=r"^weight is kept in host memory while GPUs compute") as refused:
        check(model_on("cuda"), Grid(1, 1, 1))
    assert "\n" not in str(refused.value), "in one sentence"
