"""Which engine takes part in a job's checkpoints, and which of its loads is the job's resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from remora.deepspeed import engine as engines
from remora.deepspeed.engine import AttachedEngine, _asked_of, attach
from remora.deepspeed.hook import _initialize
from remora.deepspeed.record import Record, write


class Engine:
    """An engine with the signatures of DeepSpeed's own; keeps what it was asked to load."""

    global_steps = 0

    def __init__(self) -> None:
        self.loaded: list[Any] = []

    def save_checkpoint(self, save_dir: Any, tag: Any = None, client_state: Any = None) -> None:
        """Nothing to keep."""

    def load_checkpoint(
        self,
        load_dir: Any,
        tag: Any = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
    ) -> str:
        """Keep the call."""
        self.loaded.append((load_dir, tag))
        return "the script's own"


@pytest.fixture(autouse=True)
def first_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine of this process takes part yet, and nothing is left to be done at its end."""
    monkeypatch.setattr(engines, "_attached", None)
    monkeypatch.setattr(engines.atexit, "register", lambda _: None)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")


def test_the_first_engine_of_a_script_takes_part_and_a_line_says_so_of_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    actor, critic = Engine(), Engine()
    attach(actor)
    assert capsys.readouterr().err == ""
    attach(critic)
    assert isinstance(actor.load_checkpoint.__self__, AttachedEngine)
    assert critic.load_checkpoint.__self__ is critic
    assert capsys.readouterr().err.count("another DeepSpeed engine") == 1


@pytest.mark.parametrize(("named", "others", "said"), [(None, 0, [24]), ("24", 0, []), (None, 1, [])])
def test_the_only_engine_reports_its_batch_at_its_first_step_where_the_job_names_none(
    named: str | None, others: int, said: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines of one script have batches of their own, and the job has one."""
    sent: list[Any] = []

    class Link:
        def send(self, message: Any) -> None:
            sent.append(message)

    monkeypatch.setattr(engines.training, "open_link", Link)
    if named is None:
        monkeypatch.delenv("REMORA_GLOBAL_BATCH", raising=False)
    else:
        monkeypatch.setenv("REMORA_GLOBAL_BATCH", named)
    made = Engine()
    made.train_micro_batch_size_per_gpu = lambda: 2  # type: ignore[attr-defined]
    made.gradient_accumulation_steps = lambda: 3  # type: ignore[attr-defined]
    made.dp_world_size = 4  # type: ignore[attr-defined]
    made.step = lambda: None  # type: ignore[attr-defined]
    attach(made)
    for _ in range(others):
        attach(Engine())
    assert sent == []
    for _ in range(2):
        made.step()  # type: ignore[attr-defined]
    assert sent == [{"type": "batch", "samples": samples} for samples in said]


@pytest.mark.parametrize(
    ("arguments", "named", "is_resume"),
    [
        (("there",), {}, True),
        (("there", "best", True, True), {}, True),
        (("there", "best", True, False), {}, False),
        (("there",), {"load_optimizer_states": False}, False),
        (("there", None, True, True, True, True), {}, False),
        (("there",), {"load_module_only": True}, False),
    ],
)
def test_a_load_without_the_optimizer_is_not_the_jobs_resume(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: tuple[Any, ...],
    named: dict[str, Any],
    is_resume: bool,
) -> None:
    monkeypatch.setattr(engines.training, "resume_from", lambda: tmp_path)
    monkeypatch.setattr(AttachedEngine, "_load_job", lambda *_, **__: "the job's")
    engine = Engine()
    part = AttachedEngine(engine)
    assert part.load(*arguments, **named) == ("the job's" if is_resume else "the script's own")
    assert part.load("there") == ("the script's own" if is_resume else "the job's"), "resumed once"


def test_a_script_with_several_engines_names_the_part_of_its_checkpoint_that_it_means(tmp_path: Path) -> None:
    assert _asked_of(tmp_path, str(tmp_path / "actor")) == tmp_path / "actor"
    assert _asked_of(tmp_path, "checkpoints") == tmp_path
    assert _asked_of(tmp_path, None) == tmp_path


def test_a_script_that_names_a_micro_batch_alone_goes_on_with_the_batch_of_its_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def initialize(args: Any = None, model: Any = None, mpu: Any = None, config: Any = None) -> tuple[Any]:
        given.append(config)
        return (Engine(),)

    (tmp_path / "step7").mkdir()
    saved = Record(
        tag="step7", world_size=2, copies=2, stage=1, global_batch=12, folder=None, parameters=1, model="m"
    )
    write(saved, tmp_path)
    for name in ("REMORA_GLOBAL_BATCH", "REMORA_RESIZABLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("REMORA_RESUME_DIR", str(tmp_path))
    own = {"train_micro_batch_size_per_gpu": 2}
    _initialize(initialize)(model=object(), config=own)
    _initialize(initialize)(model=object(), config=own)
    of_checkpoint, of_another_engine = given
    assert of_checkpoint == {"train_batch_size": 12, **own, "gradient_accumulation_steps": 2}
    assert of_another_engine.get("train_batch_size") != 12
    monkeypatch.setattr(engines, "_attached", None)
    next(tmp_path.glob("*.json")).unlink()
    _initialize(initialize)(model=object(), config=own)
    assert given[-1] == of_another_engine, "a checkpoint that is the script's own says nothing of it"
