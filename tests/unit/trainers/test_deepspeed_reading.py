"""The configuration that a DeepSpeed command names is read as the node's user: never through a link of a script."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trainers.backends import deepspeed
from trainers.confined_folders import ConfinedFolder

CANARY = '{"train_batch_size": 4, "canary": "of the node"}'


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """The folder of a job, beside what only the node's user may read."""
    made = tmp_path / "code"
    (made / "configs").mkdir(parents=True)
    (tmp_path / "canary.json").write_text(CANARY)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets/canary.json").write_text(CANARY)
    return made


def read(code: Path, name: str) -> str | None:
    with ConfinedFolder(code) as opened:
        return deepspeed._text_of(opened, name)


def test_a_file_of_the_code_is_read(code: Path) -> None:
    (code / "configs/ds.json").write_text('{"train_batch_size": 8}')
    assert read(code, "configs/ds.json") == '{"train_batch_size": 8}'
    assert read(code, "missing.json") is None
    assert read(code, "configs") is None


@pytest.mark.parametrize("name", ["link.json", "folder/canary.json", "../canary.json", "pipe.json"])
def test_nothing_else_is_read(code: Path, name: str) -> None:
    (code / "link.json").symlink_to(code.parent / "canary.json")
    (code / "folder").symlink_to(code.parent / "secrets")
    os.mkfifo(code / "pipe.json")
    assert read(code, name) is None


def test_no_more_is_read_than_a_configuration_has(code: Path) -> None:
    with (code / "large.json").open("wb") as file:
        file.truncate(2**30)
    assert len(read(code, "large.json") or "") == deepspeed._CONFIG_BYTES
