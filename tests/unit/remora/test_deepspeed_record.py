"""A checkpoint of DeepSpeed is read by the job that wrote it, and refused by another."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remora.deepspeed.record import NAME, Record, check_fits, digest_of, read, relative_folder, write
from remora.deepspeed.refusal import Refused

RECORD = Record(
    tag="global_step5", world_size=4, copies=2, stage=1, global_batch=96, folder="out", parameters=1234, model="aa"
)  # fmt: skip


def test_a_record_comes_back(tmp_path: Path) -> None:
    write(RECORD, tmp_path)
    with pytest.raises(Refused, match="lacks the folder 'global_step5'"):
        read(tmp_path, "5")
    (tmp_path / RECORD.tag).mkdir()
    assert read(tmp_path, "5") == RECORD
    assert RECORD.together == 2


def test_a_checkpoint_of_another_framework_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.pt").touch()
    with pytest.raises(Refused, match="step 5 was not written by DeepSpeed"):
        read(tmp_path, "5")
    (tmp_path / NAME).write_text("{")
    with pytest.raises(Refused, match="cannot be read"):
        read(tmp_path, "5")


@pytest.mark.parametrize("elsewhere", ["/srv/canary", "../canary", "out/../../canary", "", ".", "a\0b", 5])
def test_a_record_that_names_a_folder_elsewhere_is_refused(tmp_path: Path, elsewhere: Any) -> None:
    (tmp_path / RECORD.tag).mkdir()
    for names in ({"folder": elsewhere}, {"tag": elsewhere}):
        write(replace(RECORD, **names), tmp_path)
        with pytest.raises(Refused, match="names a folder elsewhere"):
            read(tmp_path, "5")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"copies": 1}, "2 workers share, and here 4 share it"),
        ({"model": "bb", "parameters": 99}, "another model: it has 1,234 parameters .* than the 99"),
        ({"stage": 3}, "stage 1 of ZeRO, and here it is stage 3"),
        ({"global_batch": 24}, "a global batch of 96, and here it is 24"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_values(change: dict[str, Any], said: str) -> None:
    check_fits(RECORD, replace(RECORD, world_size=8, copies=4), "5")
    with pytest.raises(Refused, match=said):
        check_fits(RECORD, replace(RECORD, **change), "5")


def test_models_are_distinguished_by_names_and_shapes() -> None:
    one, other = ("a.weight", (3, 4)), ("a.bias", (3,))
    assert digest_of([one, other]) == digest_of([other, one])
    assert len({digest_of([one]), digest_of([("a.weight", (4, 3))]), digest_of([("b.weight", (3, 4))])}) == 3


def test_the_scripts_own_folder_is_found_again_only_below_its_code() -> None:
    code = Path("/srv/code")
    assert relative_folder("out/run", code) == "out/run"
    assert relative_folder("/srv/code/out", code) == "out"
    assert [relative_folder(one, code) for one in ("/data/out", "../out", ".")] == [None] * 3
