"""What DeepSpeed keeps on NVMe cannot be resized: a job that may have other sizes is refused before it trains."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from remora.client.blocking import Client
from remora.deepspeed import trainer_arguments
from remora.deepspeed.config_files import check_config_files
from remora.deepspeed.configuration import check_resizable
from remora.deepspeed.hook import _initialize
from remora.deepspeed.record import Record
from remora.deepspeed.refusal import Refused
from remora.deepspeed.resharding import readable_by
from remora.errors import SpecError
from tests.unit.remora.fake_service import FakeService

REFUSED = (
    r"offload_optimizer\.device is \"nvme\" .* write \"cpu\" there, or make workers\.min and workers\.max"
)


def config(section: str = "offload_optimizer", device: str = "nvme", stage: int = 3) -> dict[str, Any]:
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage, section: {"device": device, "nvme_path": "/nvme"}},
    }


@pytest.fixture
def resizable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMORA_RESIZABLE", "1")
    monkeypatch.setenv("REMORA_GLOBAL_BATCH", "8")


@pytest.mark.parametrize("section", ["offload_optimizer", "offload_param"])
def test_each_kind_of_offload_to_nvme_is_named(section: str) -> None:
    with pytest.raises(Refused, match=rf'zero_optimization\.{section}\.device is "nvme"'):
        check_resizable(config(section))


@pytest.mark.parametrize(
    "fits",
    [
        config(device="cpu"),
        config(device="none"),
        config(stage=2),
        {"zero_optimization": True},
        {"zero_optimization": {"stage": 3, "offload_optimizer": None}},
        {},
    ],
)
def test_what_can_be_resized_is_not_refused(fits: dict[str, Any]) -> None:
    check_resizable(fits)


def given_by_path(tmp_path: Path) -> Any:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config()))
    return path


@pytest.mark.parametrize("form", [lambda _: config(), given_by_path], ids=["dictionary", "file"])
def test_a_script_of_its_own_is_refused_when_it_makes_its_engine(
    form: Callable[[Path], Any], tmp_path: Path, resizable: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def initialize(args: Any = None, model: Any = None, mpu: Any = None, config: Any = None) -> None:
        raise AssertionError("DeepSpeed was not to begin")

    def end(refused: Refused) -> None:
        raise refused

    monkeypatch.setattr("remora.deepspeed.hook.end_refused", end)
    with pytest.raises(Refused, match=REFUSED):
        _initialize(initialize)(model=object(), config=form(tmp_path))


def test_a_trainer_is_refused_when_its_arguments_are_made(resizable: None) -> None:
    arguments = SimpleNamespace(
        deepspeed=config(), per_device_train_batch_size=2, gradient_accumulation_steps=1
    )
    with pytest.raises(Refused, match=REFUSED):
        trainer_arguments.fit(arguments)


def test_a_job_of_one_size_may_offload_to_nvme(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REMORA_RESIZABLE", raising=False)
    monkeypatch.setenv("REMORA_GLOBAL_BATCH", "8")
    arguments = SimpleNamespace(
        deepspeed=config(), per_device_train_batch_size=2, gradient_accumulation_steps=4
    )
    trainer_arguments.fit(arguments)
    assert arguments.deepspeed["train_batch_size"] == 8
    check_config_files(["t.py", "--deepspeed", "d.json"], 8, lambda _: json.dumps(config()))


@pytest.mark.parametrize(("least", "most"), [(1, 2), (2, 2)])
def test_submitting_it_is_refused_before_anything_is_sent(
    least: int, most: int, service: FakeService, tmp_path: Path
) -> None:
    (tmp_path / "ds.json").write_text(json.dumps(config()))
    (tmp_path / "train.py").touch()
    job: dict[str, Any] = {
        "command": "python train.py --deepspeed ds.json",
        "code": str(tmp_path),
        "backend": "deepspeed",
        "workers": {"min": least, "max": most},
        "elastic": {"global_batch": 8},
    }
    with Client(service.url) as client:
        if least == most:
            client.submit(job)
        else:
            with pytest.raises(SpecError, match=REFUSED):
                client.submit(job)
    assert bool(service.requests) is (least == most)


def test_a_checkpoint_from_nvme_is_not_converted_for_another_number_of_workers(tmp_path: Path) -> None:
    (tmp_path / "step7" / "offloaded_tensors" / "rank0").mkdir(parents=True)
    (tmp_path / "step7" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    two, one = (
        Record(
            tag="step7",
            world_size=copies,
            copies=copies,
            stage=3,
            global_batch=8,
            folder=None,
            parameters=1,
            model="m",
        )
        for copies in (2, 1)
    )
    assert readable_by(tmp_path, two, two) == (tmp_path, False)
    with pytest.raises(Refused, match="files of each of 2 workers, and 1 cannot divide it"):
        readable_by(tmp_path, two, one)
