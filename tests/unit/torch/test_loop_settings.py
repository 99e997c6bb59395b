"""Workers of two releases agree on what both know."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from remora.torch.buffers import Buffers
from remora.torch.group import Group
from remora.torch.loop_settings import Settings, fingerprint
from remora.torch.members import Membership
from remora.torch.reduction import SampleExact
from remora.torch.state_sync import WorkerState

SETTINGS = Settings(8, 4, None, 0, True, False, "sample-exact", 1, None)


def test_a_sampler_is_in_the_fingerprint_only_where_there_is_one() -> None:
    written = (
        "Settings(global_batch=8, shards=4, micro_batch=None, seed=0, shuffle=True, drop_last=False,"
        " exactness='sample-exact', epochs=1, total_steps=None, check_every=100, nonfinite=None, verify_every=None)"
    )
    assert repr(SETTINGS) == written
    sampled = [
        replace(SETTINGS, sampler=name) for name in ("", "WeightedRandomSampler", "SubsetRandomSampler")
    ]
    assert len({fingerprint(one, []) for one in sampled}) == 3


def test_a_group_is_formed_from_five_numbers_of_each_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Linear(1, 1)
    cpu = torch.device("cpu")
    members = Membership(None, 1, SampleExact(list(model.parameters()), 1, 2), Buffers(model), cpu)
    sizes: list[int] = []
    gather = Group.gather

    def counted(group: Group, into: torch.Tensor, own: torch.Tensor) -> object:
        sizes.append(own.numel())
        return gather(group, into, own)

    monkeypatch.setattr(Group, "gather", counted)
    for name in ("MASTER_ADDR", "WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    state = WorkerState(3, False, 11, 12, True, 5)
    members.begin(state, dict, lambda _: None)
    assert members._compare(members.group, state) == [state]
    assert set(sizes) == {5}
    members.leave()
