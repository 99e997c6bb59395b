"""Workers that hold one DeepSpeed model together: how many copies they make, and what is said when they make none."""

from __future__ import annotations

from typing import Any

import pytest

from remora.deepspeed.engine import copies_of, counts_every_worker
from remora.deepspeed.hook import _check_places, _refuse_half_pipelines
from remora.deepspeed.refusal import Refused


class Topology:
    """One with DeepSpeed's methods."""

    def __init__(self, **axes: int) -> None:
        self._axes = axes

    def get_axis_names(self) -> list[str]:
        return list(self._axes)

    def get_dim(self, axis: str) -> int:
        return self._axes.get(axis, 0)


class Pipeline:
    """A model in stages."""

    num_stages = 2

    def topology(self) -> Topology:
        return Topology(pipe=2, data=3)


class Parallel:
    """A script's own `mpu`."""

    def get_data_parallel_world_size(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("model", "mpu", "config", "copies", "counts"),
    [
        (None, None, {}, 6, False),
        (None, None, {"tensor_parallel": {"autotp_size": 2}}, 3, True),
        (None, None, {"tensor_parallel": {"autotp_size": 0}}, 6, False),
        (None, None, {"tensor_parallel": {}}, 6, False),
        (None, Parallel(), {"tensor_parallel": {"autotp_size": 3}}, 2, False),
        (Pipeline(), None, {}, 3, False),
    ],
)
def test_copies_of_the_model(
    monkeypatch: pytest.MonkeyPatch, model: Any, mpu: Any, config: dict[str, Any], copies: int, counts: bool
) -> None:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "6")
    assert copies_of(model, mpu, config) == copies
    assert counts_every_worker(model, mpu, config) is counts


@pytest.mark.parametrize(
    ("stages", "topology", "world_size"),
    [
        (2, None, 6),
        (None, Topology(pipe=2, data=2, model=2), 8),
        (None, Topology(pipe=2, data=3), 6),
        (None, None, 5),
    ],
)
def test_whole_copies_are_let_through(stages: int | None, topology: Any, world_size: int) -> None:
    _check_places(stages, topology, world_size)


@pytest.mark.parametrize(
    ("stages", "topology", "world_size", "said"),
    [
        (2, None, 5, r"2 stages, and 5 workers .*\{multiple_of: 2\}"),
        (None, Topology(pipe=2, data=1, model=2), 6, r"for 4 workers, of which 4 hold .* 6; .*\{multiple_of: 4\}"),
        (None, Topology(pipe=2, data=0, model=2), 3, r"for 4 workers, of which 4 hold .* 3; .*\{multiple_of: 4\}"),
        (None, Topology(pipe=2, data=4), 6, r"for 8 workers, of which 2 hold .* 6; .*\{multiple_of: 2\}"),
    ],
)  # fmt: skip
def test_half_copies_are_refused_with_the_multiple_that_fits(
    stages: int | None, topology: Any, world_size: int, said: str
) -> None:
    with pytest.raises(Refused, match=said):
        _check_places(stages, topology, world_size)


def test_stages_are_seen_whether_they_are_named_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    class Module:
        """With the first parameters of `PipelineModule`."""

        def __init__(self, layers: list[int], num_stages: int | None = None, topology: Any = None) -> None:
            self.made_of = (layers, num_stages, topology)

    _refuse_half_pipelines(Module)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(SystemExit, match="2 stages, and 3 workers"):
        Module([], 2)
    with pytest.raises(SystemExit, match="2 stages, and 3 workers"):
        Module([], num_stages=2)
    assert Module([1], 3).made_of == ([1], 3, None)
