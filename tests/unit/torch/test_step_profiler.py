"""A script is profiled between two of its steps, by PyTorch's own profiler, and trains as if it were not."""

from __future__ import annotations

import gzip
import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from remora.script import channel, step_profiler
from remora.script.step_profiler import StepProfiler, TraceTooLarge, compress, trace_name


class Script:
    """Trains a layer, step by step."""

    def __init__(self) -> None:
        self.said: list[channel.Message] = []
        self.has_said = threading.Event()
        self.profiler = StepProfiler(self._say)
        torch.manual_seed(7)
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def _say(self, message: channel.Message) -> None:
        self.said.append(message)
        self.has_said.set()

    def ask(self, name: str = "a1", steps: int = 3, within_s: float = 60.0, most: int = 1 << 20) -> None:
        self.has_said.clear()
        self.profiler.ask({"token": name, "steps": steps, "within_s": within_s, "most_bytes": most})

    def train(self, steps: int) -> None:
        for _ in range(steps):
            self.optimizer.zero_grad()
            self.model(torch.randn(4, 8)).square().sum().backward()
            self.optimizer.step()
            self.profiler.step_ended()

    def answer(self) -> channel.Message:
        assert self.has_said.wait(60.0)
        return self.said[-1]


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Script:
    monkeypatch.setenv("REMORA_SCRATCH_DIR", str(tmp_path))
    return Script()


def operators(path: Path, name: str) -> list[Any]:
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    return [event for event in events if event.get("name") == name]


def test_the_next_steps_are_in_the_trace_and_no_others(script: Script, tmp_path: Path) -> None:
    script.train(2)
    script.ask(steps=3)
    script.train(8)
    assert script.answer() == {"type": "profiled", "token": "a1", "steps": 3}
    assert [path.name for path in tmp_path.iterdir()] == [trace_name("a1")]
    assert len(operators(tmp_path / trace_name("a1"), "aten::addmm")) == 3


def test_the_result_is_the_same_bit_by_bit(script: Script) -> None:
    script.train(12)
    profiled = Script()
    for token in ("a1", "a2"):
        profiled.ask(token)
        profiled.train(6)
        assert profiled.answer()["token"] == token
    for ours, other in zip(profiled.model.parameters(), script.model.parameters(), strict=True):
        assert torch.equal(ours, other)


def test_a_script_that_begins_to_use_the_profiler_keeps_it(script: Script, tmp_path: Path) -> None:
    script.ask(steps=10)
    script.train(3)
    with torch.profiler.profile() as own:
        script.train(2)
    assert sum(event.name == "aten::addmm" for event in own.events()) == 2
    script.train(20)
    assert [one["error"] for one in script.said] == ["its script uses PyTorch's profiler itself"]
    assert list(tmp_path.iterdir()) == []
    script.ask("a2")
    script.train(6)
    assert script.answer() == {"type": "profiled", "token": "a2", "steps": 3}


def test_a_script_that_uses_the_profiler_now_is_not_profiled(script: Script) -> None:
    with torch.profiler.profile() as own:
        script.ask()
        script.train(2)
    assert script.answer()["error"] == "its script uses PyTorch's profiler itself"
    assert sum(event.name == "aten::addmm" for event in own.events()) == 2


def test_without_pytorch_there_is_a_sentence(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    script.ask()
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch")
        script.profiler.step_ended()
    assert "has not imported PyTorch" in script.answer()["error"]


def test_a_profiler_of_the_script_that_warms_up_keeps_its_steps(script: Script) -> None:
    script.train(1)
    plan = torch.profiler.schedule(wait=0, warmup=4, active=2, repeat=1)
    with torch.profiler.profile(schedule=plan) as own:
        for number in range(6):
            if number == 1:
                script.ask(steps=10)
            script.train(1)
            own.step()
    assert sum(event.name == "aten::addmm" for event in own.events()) == 2
    assert [one["error"] for one in script.said] == ["its script uses PyTorch's profiler itself"]


def test_a_profiler_that_fails_does_not_fail_the_script(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("CUPTI\nis busy")

    monkeypatch.setattr(step_profiler, "_profiler_of", fail)
    script.ask()
    script.train(3)
    answer = script.answer()
    assert (answer["token"], answer["error"]) == ("a1", "PyTorch's profiler failed: CUPTI is busy")


def test_a_request_that_is_too_old_begins_no_profile(script: Script) -> None:
    script.ask(within_s=0.0)
    script.train(5)
    assert script.said == []


def test_a_newer_request_takes_the_place_of_an_older_one(script: Script) -> None:
    script.ask("a1", steps=50)
    script.train(2)
    script.ask("a2", steps=2)
    script.train(8)
    assert script.answer() == {"type": "profiled", "token": "a2", "steps": 2}
    assert len(script.said) == 1


def test_a_long_profile_ends_with_the_step_under_way(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_profiler, "MOST_S", 0.0)
    script.ask(steps=50)
    script.train(5)
    assert script.answer() == {"type": "profiled", "token": "a1", "steps": 1}


def test_a_trace_that_is_too_large_is_refused_and_leaves_nothing(script: Script, tmp_path: Path) -> None:
    script.ask(most=200)
    script.train(6)
    assert script.answer()["error"].endswith("compressed, and may have 200: ask for fewer steps")
    assert list(tmp_path.iterdir()) == []


def test_a_huge_trace_is_not_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_profiler, "MOST_TRACE_BYTES", 9)
    (tmp_path / "raw").write_bytes(b"0123456789")
    with pytest.raises(TraceTooLarge, match="at least 10 bytes before it is compressed, and may have 9"):
        compress(tmp_path / "raw", tmp_path / "packed", 100)


def test_steps_of_another_thread_do_not_count(script: Script) -> None:
    script.ask(steps=2)
    script.train(2)
    other = threading.Thread(target=script.train, args=(5,))
    other.start()
    other.join()
    assert script.said == []
    script.train(1)
    assert script.answer()["steps"] == 2


@pytest.mark.parametrize("message", [{}, {"token": "../x", "steps": 1, "within_s": 1, "most_bytes": 1}])
def test_a_malformed_request_is_refused(script: Script, message: dict[str, Any]) -> None:
    with pytest.raises((KeyError, ValueError)):
        script.profiler.ask(message)
