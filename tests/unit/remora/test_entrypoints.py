"""A function in place of a command: what it becomes, what it is given, and what its result means."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from remora.cli.exits import ExitCode
from remora.errors import SpecError
from remora.spec.entrypoint import MAX_ARGUMENT_BYTES
from remora.spec.spec import JobSpec
from tests.command_line import Cli
from tests.unit.remora.fake_service import FakeService

MODULE = """
import pickle, sys

class Model:
    pass

def main(*values, **named):
    print(repr(values), repr(named), sys.argv)
    return named.get("code")

class Runner:
    @staticmethod
    def run():
        assert pickle.loads(pickle.dumps(Model())).__class__.__module__ == "train"
        return {"loss": 0.1}
"""


def call(folder: Path, **fields: Any) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(MODULE)
    _, *words = JobSpec.from_mapping(fields).command
    return subprocess.run([sys.executable, *words], cwd=folder, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"epochs": 5, "text": 'a "b" ü', "deep": {"x": [1, None, True]}}, "() {'epochs': 5, 'text': 'a \"b\" ü', "),
        ([1, "two"], "(1, 'two') {} ['train:main']"),
        (None, "() {} ['train:main']"),
    ],
)  # fmt: skip
def test_it_gets_its_arguments(tmp_path: Path, arguments: Any, said: str) -> None:
    done = call(tmp_path, entrypoint="train:main", arguments=arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(said)


def test_a_whole_number_is_its_exit_code_and_any_other_result_is_success(tmp_path: Path) -> None:
    codes = {7: 7, 0: 0, True: 0, "no": 0}
    for result, code in codes.items():
        assert call(tmp_path, entrypoint="train:main", arguments={"code": result}).returncode == code, result
    assert call(tmp_path, entrypoint="train:Runner.run").returncode == 0


def test_what_is_not_there_ends_it_with_pythons_own_words(tmp_path: Path) -> None:
    done = call(tmp_path, entrypoint="train:mian")
    assert done.returncode == 1
    assert "module 'train' has no attribute 'mian'" in done.stderr


def test_the_stored_specification_has_the_command_and_is_read_again() -> None:
    spec = JobSpec.from_mapping({"entrypoint": "pkg.train:main", "arguments": {"lr": 0.1}})
    assert spec.name == "train"
    stored = json.loads(json.dumps(spec.to_mapping()))
    assert stored["command"][:2] == ["python", "-c"]
    assert stored["command"][3:] == ["pkg.train:main", '{"lr": 0.1}']
    assert JobSpec.from_mapping(stored) == spec
    assert spec.with_code(f"sha256:{'0' * 64}").entrypoint == "pkg.train:main"


def test_expressions_in_texts_are_known() -> None:
    fields = {"entrypoint": "train:main", "arguments": {"to": "${{outputs.final}}"}}
    JobSpec.from_mapping({**fields, "outputs": {"final": None}})
    with pytest.raises(SpecError, match=r"outputs.final\}\} is not among the job's outputs"):
        JobSpec.from_mapping(fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"entrypoint": "train"}, "entrypoint: 'train' given, expected a module and a function of the code"),
        ({"entrypoint": 3}, "entrypoint: 3 given"),
        ({"entrypoint": "a/b.py:main"}, "entrypoint: 'a/b.py:main' given"),
        ({"entrypoint": "a:b", "command": "x"}, "entrypoint: there is a command too; a job has either"),
        ({"entrypoint": "a:b", "arguments": 3}, "arguments: 3 given, expected names with values"),
        ({"entrypoint": "a:b", "arguments": {"a-b": 1}}, "arguments: 'a-b' is not the name of an argument"),
        ({"entrypoint": "a:b", "arguments": {"class": 1}}, "'class' is not the name of an argument"),
        ({"entrypoint": "a:b", "arguments": {1: 1}}, "arguments: '1' is not the name of an argument"),
        ({"entrypoint": "a:b", "arguments": [{1: 2}]}, "keys within arguments must be texts"),
        ({"entrypoint": "a:b", "arguments": [float("inf")]}, "is not finite"),
        ({"entrypoint": "a:b", "arguments": ["x" * MAX_ARGUMENT_BYTES]}, "more than 100 KiB"),
        ({"command": "x", "arguments": {"a": 1}}, "arguments: these are the arguments of an entrypoint"),
    ],
)
def test_one_mistake_is_one_sentence(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping(fields)
    assert said in str(caught.value)
    assert len(caught.value.problems) == 1


def test_a_date_is_named_with_what_to_do() -> None:
    with pytest.raises(SpecError, match=r"'2026-01-01' is no text, number.*put quotes around it"):
        JobSpec.from_yaml("entrypoint: a:b\narguments: {since: 2026-01-01}")


def test_the_command_line_takes_arguments_as_json_or_text(
    cli: Cli, service: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    options = ("--entrypoint", "train:main", "--workers", "2", "-q")
    assert cli("submit", *options, "--", "epochs=5", "lr=1e-3", "tags=[1, 2]", "name=x=y") == ExitCode.OK
    (job,) = service.jobs.values()
    assert job.spec["arguments"] == {"epochs": 5, "lr": 0.001, "tags": [1, 2], "name": "x=y"}
    assert job.spec["code"] in service.bundles
    assert cli("show", job.id) == ExitCode.OK
    assert "train:main" in cli.out
    assert cli("submit", *options, "--", "epochs") == ExitCode.USAGE
    assert "'epochs': expected NAME=VALUE" in cli.err
    assert cli("submit") == ExitCode.USAGE
