"""What a machine finds out about itself, and two processes about what joins them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
import torch

from remora.free_ports import free_port
from service.queue.preflights import fault_of, read_measured
from tests.architecture.repository import ROOT
from trainers.preflight import own, tasks
from trainers.preflight.product import DIGEST, SIZE, digest_of, left, right


def fault() -> str | None:
    """Why this machine must not get work, as the service reads what it prints."""
    return fault_of(read_measured(json.dumps(own.measure())), {"CPU": 1.0})


def test_the_digest_is_that_of_integers() -> None:
    one, other = (
        np.array([[of(row, column) for column in range(SIZE)] for row in range(SIZE)]) for of in (left, right)
    )
    result = one @ other
    assert np.abs(result).max() < 2**24, "exact in float32"
    assert digest_of(result.astype("<i4").tobytes()) == DIGEST


def test_a_sound_machine_passes() -> None:
    assert fault() is None


def every_fourth(number: int) -> bool:
    return number % 4 == 3


@pytest.mark.parametrize("errs", [lambda _: True, every_fourth], ids=["always", "now and then"])
def test_one_number_of_a_product_that_is_wrong_is_found(
    errs: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = torch.Tensor.__matmul__, 0

    def multiply(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        nonlocal count
        result = real(one, other)
        result[17, 42] += errs(count)
        count += 1
        return result

    monkeypatch.setattr(torch.Tensor, "__matmul__", multiply)
    assert fault() == "a product of two matrices of small integers was wrong on its processor"


def test_memory_that_forgets_a_bit_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.Tensor.fill_

    def fill(kept: torch.Tensor, value: Any) -> torch.Tensor:
        real(kept, value)[5] ^= 4
        return kept

    monkeypatch.setattr(torch.Tensor, "fill_", fill)
    assert fault() == "the memory of cpu does not hold what is written to it"


def test_an_error_of_the_device_is_its_problem_and_pytorch_for_rocm_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered\nmore")

    with monkeypatch.context() as changed:
        changed.setattr(torch.Tensor, "__matmul__", fails)
        assert fault() == "cpu: CUDA error: uncorrectable ECC error encountered"
    monkeypatch.setattr(torch.version, "hip", "6.2.4")
    assert "built for AMD GPUs (ROCm 6.2.4)" in str(fault())


def test_two_processes_measure_what_joins_them() -> None:
    words = [sys.executable, "-P", "-m", "trainers.preflight.link", "60"]
    port = str(free_port())
    both = [
        subprocess.Popen(
            [*words, str(rank), "127.0.0.1", port, "gloo"],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in (0, 1)
    ]
    said = [one.communicate(timeout=60.0)[0] for one in both]
    assert [one.returncode for one in both] == [0, 0]
    assert all(float(text) > 0.1 for text in said)


def test_a_process_whose_neighbour_never_comes_ends_by_itself() -> None:
    words = [sys.executable, "-P", "-m", "trainers.preflight.link", "5"]
    ended = subprocess.run(
        [*words, "1", "127.0.0.1", str(free_port()), "gloo"],
        capture_output=True,
        env={"PYTHONPATH": str(ROOT), "GLOO_SOCKET_IFNAME": "lo"},
        timeout=60.0,
        check=False,
    )
    assert ended.returncode != 0


def test_ray_is_asked_once_which_nodes_there_are_and_never_for_what_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked, begun = [], []

    def ray_nodes_of(node_ids: Collection[str]) -> dict[str, str]:
        looked.append(len(node_ids))
        return {one: f"ray-{one}" for one in node_ids if one != "unknown"}

    monkeypatch.setattr(tasks, "ray_nodes_of", ray_nodes_of)
    monkeypatch.setattr(tasks, "_on", lambda place, *work: begun.append(place))
    preflights, names = tasks.RayPreflights(), [f"node_{number}" for number in range(100)]
    for _ in range(3):
        preflights.measure(names, 60.0)
    assert (looked, len(begun)) == ([100], 100)
    looked.clear()
    begun.clear()
    backends = dict.fromkeys(zip(names[::2], names[1::2], strict=True), "gloo")
    for _ in range(3):
        assert preflights.link(backends, 60.0) == [*backends]
    assert (looked, len(begun)) == ([100], 50)
    assert preflights.link({("node_a", "unknown"): "gloo"}, 60.0) == []
