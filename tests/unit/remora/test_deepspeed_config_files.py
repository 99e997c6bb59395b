"""A DeepSpeed configuration that the command names is judged with the job, before anything runs."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from remora.client.blocking import Client
from remora.deepspeed.config_files import check_bundle, check_config_files
from remora.deepspeed.refusal import Refused
from remora.errors import SpecError
from tests.unit.remora.fake_service import FakeService

CONFIG = json.dumps({"train_batch_size": 64})


@pytest.mark.parametrize(
    "command",
    [
        "python train.py --deepspeed_config conf/ds.json",
        "python train.py --deepspeed-config=./conf/ds.json --lr 1",
        "deepspeed train.py --deepspeed --deepspeed_config conf/../conf/ds.json",
        "python train.py --deepspeed conf/ds.json --output_dir out",
    ],
)
def test_one_that_contradicts_the_job_is_refused_with_both_values(command: str) -> None:
    files = {"conf/ds.json": CONFIG}
    check_config_files(command.split(), 64, files.get)
    with pytest.raises(Refused, match=r"train_batch_size is 64 .* elastic.global_batch is 96"):
        check_config_files(command.split(), 96, files.get)


def test_one_that_is_not_there_is_refused() -> None:
    with pytest.raises(
        Refused, match=r"names the DeepSpeed configuration ds\.json, and there is no such file"
    ):
        check_config_files(["python", "train.py", "--deepspeed_config", "ds.json"], 96, {}.get)


@pytest.mark.parametrize(
    "name", ["/data/ds.json", "../ds.json", "${{outputs.made}}/ds.json", "ds.hjson", "eyJ9"]
)
def test_one_that_is_elsewhere_is_judged_at_the_start(name: str) -> None:
    check_config_files(["python", "train.py", "--deepspeed_config", name], 96, {}.get)


@pytest.mark.parametrize("text", ["{ // of HJSON\n}", "[1]", "[" * 100_000])
def test_one_that_only_deepspeed_can_read_is_left_to_it(text: str) -> None:
    check_config_files(["python", "train.py", "--deepspeed_config", "ds.json"], 96, {"ds.json": text}.get)


def test_a_bundle_is_read_where_it_lies() -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("conf/ds.json", CONFIG)
    with pytest.raises(Refused, match="is 64"):
        check_bundle(packed, ["python", "train.py", "--deepspeed_config", "conf/ds.json"], 96)


def test_submitting_it_says_so_and_sends_nothing(service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "ds.json").write_text(CONFIG)
    (tmp_path / "train.py").touch()
    job: dict[str, Any] = {
        "command": "python train.py --deepspeed_config ds.json",
        "code": str(tmp_path),
        "backend": "deepspeed",
        "elastic": {"global_batch": 96},
    }
    with Client(service.url) as client, pytest.raises(SpecError, match=r"is 64 .* is 96"):
        client.submit(job)
    assert service.requests == []
