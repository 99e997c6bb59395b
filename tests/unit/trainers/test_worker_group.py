"""One worker group: messages of ranks in, effects out."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.checkpoints.manifest import ShardFile
from trainers.driver.group import (
    CHECKPOINT_PATIENCE_S,
    DEADLINE_MARGIN_S,
    RETRY_S,
    STOP_PATIENCE_S,
    Commit,
    Count,
    Deadline,
    Effect,
    Note,
    Send,
    WorkerGroup,
)
from trainers.driver.progress import Progress


class Scene:
    """A worker group whose ranks talk when the test says so; `said` is what came out last."""

    def __init__(
        self, world_size: int = 2, *, interval_s: float | None = 60.0, cooperative: bool = True
    ) -> None:
        self.now = 1000.0
        self.world_size = world_size
        self.said: list[Effect] = []
        self.group = WorkerGroup(
            generation=1,
            world_size=world_size,
            started_at=self.now,
            progress=Progress(),
            checkpoint_interval_s=interval_s,
        )
        if cooperative:
            self.all(type="hello")
            self.hear(0, type="report", step=1)

    def hear(self, rank: int, **message: Any) -> list[Effect]:
        self.said = list(self.group.receive(rank, message, self.now))
        return self.said

    def all(self, **message: Any) -> list[Effect]:
        heard = [effect for rank in range(self.world_size) for effect in self.hear(rank, **message)]
        self.said = heard
        return heard

    def later(self, seconds: float) -> list[Effect]:
        self.now += seconds
        self.said = list(self.group.tick(self.now))
        return self.said

    def stop(self, reason: str, deadline_at: float | None = None) -> list[Effect]:
        deadline = None if deadline_at is None else Deadline(at=deadline_at, until=deadline_at)
        self.said = list(self.group.request_stop(reason, self.now, deadline))
        return self.said

    def commit(self, step: int) -> list[Effect]:
        self.said = list(self.group.committed(step, self.now))
        return self.said

    def sent(self, kind: str) -> dict[str, Any] | None:
        found = [one.message for one in self.said if isinstance(one, Send) and one.message["type"] == kind]
        return found[0] if found else None

    def events(self) -> list[str]:
        return [one.body["kind"] for one in self.said if isinstance(one, Note) and one.kind == "event"]

    def agree(self, boundary: int = 7) -> dict[str, Any]:
        """All ranks answer the hold that was just sent; returns the decision."""
        token = self.sent("hold")
        assert token is not None, "no worker was asked to hold"
        self.all(type="held", token=token["token"], boundary=boundary)
        decision = self.sent("decide")
        assert decision is not None
        return decision

    def save(self, step: int, *, asked: bool = True) -> list[Effect]:
        heard: list[Effect] = []
        for rank in range(self.world_size):
            heard += self.hear(
                rank, type="shard", step=step, files=(shard(f"rank-{rank}", rank),), asked=asked
            )
        self.said = heard
        return heard


def shard(name: str, rank: int) -> ShardFile:
    return ShardFile(name=name, size_bytes=1, sha256="00", rank=rank)


def test_lines_and_metrics_become_records() -> None:
    scene = Scene()
    assert scene.hear(1, type="log", stream="stderr", text="hi") == [
        Note("log", {"rank": 1, "stream": "stderr", "text": "hi"})
    ]
    assert scene.hear(0, type="report", step=2, metrics={"loss": 0.5}, total_steps=9) == [
        Note("metric", {"step": 2, "world_size": 2, "values": {"loss": 0.5}})
    ]
    assert scene.hear(1, type="report", step=2, metrics={"loss": 0.7}) == [], "rank 0's values count"
    assert (scene.group.progress.step, scene.group.progress.total_steps) == (2, 9)
    (note,) = scene.hear(0, type="dropped", lines=12)
    assert isinstance(note, Note)
    assert note.body["text"].startswith("12 lines were dropped")


def test_the_first_new_step_after_a_loss_is_reported() -> None:
    scene = Scene(cooperative=False)
    scene.group.progress = Progress(step=10, step_at=990.0, high_water=10, lost_since=990.0)
    scene.hear(0, type="report", step=10)
    assert scene.events() == []
    scene.hear(0, type="report", step=11)
    assert scene.events() == ["training.resumed"]
    assert scene.group.progress.lost_s == 10.0


def test_the_first_new_step_after_a_loss_says_what_that_loss_alone_repeated() -> None:
    scene = Scene(cooperative=False)
    before = Progress(step=10, step_at=990.0, repeated_steps=5)
    scene.group.progress = before.lose(991.0).regroup()
    for step in (9, 10):
        scene.hear(0, type="report", step=step)
        scene.now += 1.0
    (resumed,) = [
        one.body
        for one in scene.hear(0, type="report", step=11)
        if isinstance(one, Note) and one.kind == "event"
    ]
    assert (resumed["data"]["repeated_steps"], resumed["data"]["recomputing_s"]) == (2, 2.0)
    assert resumed["message"].endswith("and 2 steps were done again.")


def test_repeated_steps_are_counted_before_the_first_new_one_is_reported() -> None:
    scene = Scene(cooperative=False)
    scene.group.progress = Progress(step=10, step_at=990.0, high_water=10, lost_since=990.0)
    for step in (9, 10):
        scene.hear(0, type="report", step=step, metrics={"loss": 0.5})
        assert Count() not in scene.said
    scene.hear(0, type="report", step=11, metrics={"loss": 0.5})
    assert scene.said[:2] == [Count(), Note("metric", {"step": 11, "world_size": 2, "values": {"loss": 0.5}})]
    assert scene.group.progress.repeated_steps == 2
    scene.hear(0, type="report", step=12, metrics={"loss": 0.5})
    assert Count() not in scene.said


def test_what_is_paid_for_from_now_on_is_said_at_the_first_step_and_at_the_first_new_one() -> None:
    scene = Scene(cooperative=False)
    scene.group.progress = Progress(step=10, step_at=990.0, high_water=10, lost_since=990.0)
    said = []
    for step in (9, 10, 11, 12):
        scene.hear(0, type="report", step=step)
        said.append(
            [one.body["phase"] for one in scene.said if isinstance(one, Note) and "phase" in one.body]
        )
    assert said == [["recomputing"], [], ["training"], []]


def test_a_script_that_alternates_between_old_and_new_steps_says_so_once() -> None:
    scene = Scene(cooperative=False)
    scene.group.progress = Progress(step=10, step_at=990.0, high_water=10, lost_since=990.0)
    said = []
    for number in range(40):
        scene.hear(0, type="report", step=5 if number % 2 == 0 else 11 + number)
        said += [one for one in scene.said if isinstance(one, Count) or "phase" in getattr(one, "body", {})]
    assert said == [
        Note("progress", {"phase": "recomputing"}), Count(), Note("progress", {"phase": "training"}),
    ]  # fmt: skip


@given(st.integers(1, 4), st.lists(st.integers(0, 4), max_size=4), st.booleans())
def test_what_a_new_rank_0_reports_again_counts_only_where_it_had_not_arrived(
    arrived: int, others: list[int], is_planned: bool
) -> None:
    """The worker that becomes rank 0 reports its last steps again, as the one before it may have died with them."""
    scene = Scene()
    for step in range(2, arrived + 1):
        scene.hear(0, type="report", step=step, metrics={"loss": 1.0})
    if not is_planned:
        scene.group.progress = scene.group.progress.lose(scene.now)
    scene.group = scene.group.follow(2, 2, scene.now)
    sent = []
    for step in range(1, 6):
        sent += scene.hear(0, type="report", step=step, metrics={"loss": 2.0}, again=True)
        for other in others:
            sent += scene.hear(1, type="report", step=other, metrics={"loss": 3.0}, again=True)
    metrics = [one.body["step"] for one in sent if isinstance(one, Note) and one.kind == "metric"]
    assert metrics == list(range(arrived + 1, 6)), "each step is reported once"
    assert (scene.group.progress.step, scene.group.progress.repeated_steps) == (5, 0)


@pytest.mark.parametrize(
    "message",
    [
        {"type": "report"},
        {"type": "report", "step": None},
        {"type": "report", "step": -1},
        {"type": "report", "step": 2**70},
        {"type": "report", "step": float("inf")},
        {"type": "report", "step": 3, "total_steps": -3},
        {"type": "report", "step": 3, "metrics": [1]},
        {"type": "report", "step": 3, "metrics": {"loss": "low"}},
        {"type": "shard", "step": 3},
        {"type": "abandoned", "step": "soon"},
        {"type": "log"},
    ],
)
def test_a_message_that_makes_no_sense_is_dropped_with_a_remark(message: dict[str, Any]) -> None:
    scene = Scene()
    (note,) = scene.hear(0, **message)
    assert isinstance(note, Note)
    assert (note.kind, note.body["stream"]) == ("log", "remora")
    assert "not understood" in note.body["text"]
    assert scene.group.progress.step == 1


def test_unknown_messages_are_ignored_and_what_is_not_finite_is_none() -> None:
    scene = Scene()
    assert scene.hear(0, type="from the future", step="x") == []
    (note,) = scene.hear(0, type="report", step=2, metrics={"a": float("nan"), "b": None, "c": float("-inf")})
    assert isinstance(note, Note)
    assert note.body["values"] == {"a": None, "b": None, "c": None}


def test_a_periodic_checkpoint_is_agreed_upon_and_committed() -> None:
    scene = Scene(interval_s=60.0)
    assert scene.later(59.0) == []
    scene.later(1.0)
    decision = scene.agree(boundary=7)
    assert (decision["boundary"], decision["stop"]) == (8, False)
    assert scene.later(500.0) == [], "one at a time"
    (commit,) = scene.save(40)
    assert isinstance(commit, Commit)
    assert (commit.step, [file.name for file in commit.files]) == (40, ["rank-0", "rank-1"])
    assert scene.commit(40) == []
    assert scene.later(59.0) == []
    scene.later(1.0)
    assert scene.sent("hold")


def test_without_an_interval_only_planned_stops_ask() -> None:
    scene = Scene(interval_s=None)
    assert scene.later(1e6) == []
    scene.stop("grow")
    assert scene.sent("hold")


def test_a_scripts_own_checkpoint_counts_as_periodic() -> None:
    scene = Scene(interval_s=60.0)
    scene.now += 50.0
    (commit,) = scene.save(5, asked=False)
    assert isinstance(commit, Commit)
    scene.commit(5)
    assert scene.later(59.0) == []


@pytest.mark.parametrize("silent", ["hello", "report"])
def test_a_script_that_does_not_talk_is_never_asked(silent: str) -> None:
    scene = Scene(cooperative=False)
    if silent == "hello":
        scene.hear(0, type="hello")
        scene.hear(0, type="report", step=1)
    else:
        scene.all(type="hello")
    assert not scene.group.is_cooperative
    assert scene.later(1e4) == []


def test_a_planned_stop_ends_the_group_once_its_checkpoint_is_committed() -> None:
    scene = Scene()
    scene.stop("grow")
    assert scene.agree()["stop"] is True
    scene.save(40)
    assert not scene.group.is_stopping
    scene.commit(40)
    assert scene.sent("stop") == {"type": "stop", "at_once": True}
    assert scene.group.is_stopping
    assert scene.later(1e4) == []


def test_a_stop_that_is_asked_for_while_ranks_answer_uses_the_same_checkpoint() -> None:
    scene = Scene()
    scene.later(60.0)
    held = scene.sent("hold")
    scene.stop("drain", deadline_at=scene.now + 30)
    assert scene.sent("hold") is None
    scene.said = [Send(held or {})]
    assert scene.agree()["stop"] is True
    scene.save(40)
    scene.commit(40)
    assert scene.sent("stop")


def test_a_stop_that_is_asked_for_after_the_decision_gets_a_checkpoint_of_its_own() -> None:
    scene = Scene()
    scene.later(60.0)
    assert scene.agree()["stop"] is False
    scene.stop("grow")
    assert scene.sent("hold") is None
    scene.save(40)
    scene.commit(40)
    assert scene.sent("stop") is None, "no worker stands still at step 40"
    assert scene.agree(boundary=9)["stop"] is True


def test_a_deadline_is_sent_and_met() -> None:
    scene = Scene()
    deadline = scene.now + 30.0
    scene.stop("drain", deadline)
    assert scene.sent("preemption") == {"type": "preemption", "deadline_at": deadline, "reason": "drain"}
    scene.agree()
    assert scene.later(30.0 - DEADLINE_MARGIN_S - 0.1) == []
    scene.later(0.2)
    assert scene.sent("stop")


def test_machines_may_go_when_all_files_have_left_them() -> None:
    scene = Scene()
    scene.stop("drain", scene.now + 30.0)
    scene.agree()
    scene.hear(0, type="relayed", step=40)
    scene.hear(1, type="shard", step=40, files=[], asked=True)
    assert scene.later(100.0) == [], "the commit ends it, not the deadline"
    scene.hear(0, type="shard", step=40, files=[], asked=True)
    assert isinstance(scene.said[-1], Commit)
    scene.commit(40)
    assert scene.sent("stop")


def test_a_file_that_left_its_machine_and_cannot_be_stored_holds_no_rank() -> None:
    scene = Scene()
    scene.stop("drain", scene.now + 30.0)
    scene.agree()
    scene.all(type="relayed", step=40)
    assert scene.later(40.0) == []
    scene.hear(0, type="abandoned", step=40)
    scene.later(0.1)
    assert scene.sent("stop")


def test_the_earliest_deadline_counts_and_is_reported_once() -> None:
    scene = Scene()
    scene.stop("grow")
    scene.stop("drain", scene.now + 60)
    assert scene.sent("preemption"), "the growing group learns of its deadline"
    assert scene.stop("drain", scene.now + 90) == []
    scene.stop("drain", scene.now + 10)
    assert scene.sent("preemption")
    assert scene.stop("drain", scene.now + 10) == []
    scene.later(9.0)
    assert scene.sent("stop")


def test_a_script_that_does_not_talk_is_ended_at_the_deadline_only() -> None:
    scene = Scene(cooperative=False)
    scene.stop("drain", scene.now + 30.0)
    assert scene.later(20.0) == []
    scene.later(9.0)
    assert scene.sent("stop")


def test_a_stop_that_nothing_forces_is_given_up_and_may_be_asked_for_again() -> None:
    scene = Scene(interval_s=None)
    scene.stop("grow")
    scene.agree()
    scene.later(STOP_PATIENCE_S)
    assert scene.events() == ["checkpoint.ignored"]
    assert scene.sent("release")
    assert not scene.group.wants_to_stop
    scene.later(RETRY_S)
    scene.stop("grow")
    assert scene.sent("hold")


def test_a_periodic_checkpoint_that_never_comes_does_not_end_all_others() -> None:
    scene = Scene(interval_s=60.0)
    scene.later(60.0)
    scene.agree()
    scene.later(CHECKPOINT_PATIENCE_S)
    assert scene.sent("release")
    scene.later(RETRY_S)
    assert scene.sent("hold")


def test_what_the_group_before_abandoned_leaves_the_checkpoint_of_this_one_as_it_is() -> None:
    scene = Scene()
    generation = scene.group.generation
    scene.hear(0, type="shard", step=40, files=(shard("a", 0),), generation=generation)
    scene.hear(1, type="abandoned", step=40, generation=generation - 1)
    assert scene.events() == []
    scene.hear(1, type="shard", step=40, files=(shard("b", 1),), generation=generation)
    assert isinstance(scene.said[-1], Commit)


def test_an_abandoned_checkpoint_lets_ranks_go_on_that_wait_for_their_planned_end() -> None:
    scene = Scene()
    scene.stop("drain", scene.now + 100)
    scene.agree()
    scene.hear(0, type="shard", step=40, files=(shard("a", 0),), asked=True)
    scene.hear(1, type="abandoned", step=40)
    assert scene.events() == ["checkpoint.abandoned"]
    assert scene.sent("release")
    scene.later(RETRY_S)
    assert scene.agree(boundary=9)["stop"] is True, "it is tried again"
    (commit,) = scene.save(42)
    assert isinstance(commit, Commit)
    assert len(commit.files) == 2
    scene.commit(42)
    assert scene.sent("stop")


def test_a_checkpoint_that_the_storage_refused_is_tried_again() -> None:
    scene = Scene()
    scene.stop("grow")
    scene.agree()
    scene.save(40)
    scene.said = list(scene.group.failed(40, scene.now))
    assert scene.sent("release")
    scene.later(RETRY_S)
    assert scene.sent("hold")


def _shard(scene: Scene, rank: int, step: int, take: int) -> list[Effect]:
    file = ShardFile(name=f"rank-{rank}-{take}", size_bytes=1, sha256="0" * 64, rank=rank)
    return scene.hear(rank, type="shard", step=step, files=(file,), asked=False, take=take)


def test_files_of_two_checkpoints_of_one_step_are_not_mixed() -> None:
    scene = Scene()
    assert _shard(scene, 0, 40, 1) == []
    assert _shard(scene, 1, 40, 2) == [], "the other rank is still at the first one"
    (first,) = _shard(scene, 1, 40, 1)
    (second,) = _shard(scene, 0, 40, 2)
    assert isinstance(first, Commit)
    assert isinstance(second, Commit)
    assert (first.take, second.take) == (1, 2)
    assert [file.name for file in second.files] == ["rank-0-2", "rank-1-2"]


def test_a_late_commit_forgets_nothing_that_was_begun_after_it() -> None:
    """The scripts went back from step 50 to step 30, and make a checkpoint there while that of step 50 is committed."""
    scene = Scene()
    _shard(scene, 0, 50, 1)
    assert len(_shard(scene, 1, 50, 1)) == 1
    assert _shard(scene, 0, 30, 2) == []
    scene.commit(50)
    (commit,) = _shard(scene, 1, 30, 2)
    assert isinstance(commit, Commit)


def test_two_ranks_that_write_the_same_name_make_no_checkpoint() -> None:
    scene = Scene()
    for rank in (0, 1):
        scene.hear(rank, type="shard", step=5, files=(shard("model.pt", rank),), asked=False)
    assert scene.events() == ["checkpoint.refused"]
    assert not any(isinstance(one, Commit) for one in scene.said)
    (note,) = scene.said
    assert isinstance(note, Note)
    assert "model.pt" in note.body["message"]


def test_a_stop_whose_checkpoint_is_unusable_is_tried_again() -> None:
    scene = Scene()
    scene.stop("grow")
    scene.agree()
    for rank in (0, 1):
        scene.hear(rank, type="shard", step=5, files=(shard("model.pt", rank),), asked=True)
    assert scene.sent("release"), "both ranks stand still and wait for their end"
    scene.later(RETRY_S)
    assert scene.sent("hold")


def test_ranks_that_never_took_part_are_named_when_the_group_is_over() -> None:
    scene = Scene(world_size=3)
    scene.hear(0, type="shard", step=5, files=(), asked=False)
    scene.said = list(scene.group.incomplete())
    assert scene.events() == ["checkpoint.incomplete"]
    (note,) = scene.said
    assert isinstance(note, Note)
    assert note.body["data"]["missing"] == [1, 2]


def test_older_parts_are_forgotten_with_a_commit() -> None:
    scene = Scene()
    scene.hear(0, type="shard", step=5, files=(), asked=False)
    scene.save(6, asked=False)
    scene.commit(6)
    assert list(scene.group.incomplete()) == []


def test_no_rank_waits_for_one_that_has_ended() -> None:
    scene = Scene()
    scene.later(60.0)
    scene.hear(0, type="exit", exit_code=0)
    assert scene.sent("release"), "rank 0 will never answer"
    scene.later(1000.0)
    assert scene.sent("hold") is None


@pytest.mark.parametrize(
    ("exit_", "is_noted"),
    [
        ({"exit_code": 0}, True),
        ({"exit_code": 3}, True),
        ({"signal": 11}, True),
        ({"start_failed": "no such file"}, True),
        ({"signal": 15, "stopped": True}, False),
        ({"exit_code": 1, "stopped": True}, False),
        ({"exit_code": 0, "stopped": True}, True),
    ],
)
def test_ends_that_were_asked_for_are_no_failure(exit_: dict[str, Any], is_noted: bool) -> None:
    scene = Scene()
    scene.hear(1, type="exit", **exit_)
    assert scene.group.ended == {1}
    assert (1 in scene.group.exits) is is_noted


def test_what_a_command_had_too_much_of_is_noted() -> None:
    scene = Scene()
    scene.hear(1, type="exit", signal=9, excess="its files are too large")
    assert scene.group.exits[1].excess == "its files are too large"


def test_a_failure_comes_with_the_last_line_of_its_error() -> None:
    scene = Scene()
    for stream, text in [
        ("stderr", "  raise ValueError"),
        ("stderr", "ValueError: 3"),
        ("stderr", " "),
        ("stdout", "x"),
    ]:
        scene.hear(1, type="log", stream=stream, text=text)
    scene.hear(1, type="exit", exit_code=1)
    assert scene.group.exits[1].last_words == "ValueError: 3"


def test_the_first_trouble_of_a_rank_counts() -> None:
    scene = Scene()
    scene.hear(1, type="trouble", message="disk full")
    scene.hear(1, type="trouble", message="later")
    assert scene.group.troubles == {1: "disk full"}


def test_trouble_after_a_command_failed_is_of_its_making() -> None:
    scene = Scene()
    scene.hear(0, type="exit", exit_code=1)
    scene.hear(1, type="trouble", message="mpirun went")
    assert scene.group.troubles == {}


class TestEnvironments:
    """No rank begins before all have the environment of their job."""

    HAVE: ClassVar[dict[str, Any]] = {"digest": "ab12", "build_s": 0, "packages": 31}

    def scene(self) -> Scene:
        scene = Scene(cooperative=False)
        scene.group.is_preparing = True
        return scene

    def progress(self, scene: Scene) -> list[dict[str, Any]]:
        return [one.body for one in scene.said if isinstance(one, Note) and one.kind == "progress"]

    def test_the_ranks_begin_once_the_last_one_has_it(self) -> None:
        scene = self.scene()
        assert scene.hear(1, type="prepared", **self.HAVE) == []
        scene.hear(0, type="prepared", **(self.HAVE | {"build_s": 12.5}))
        assert scene.sent("begin") == {"type": "begin"}
        assert scene.events() == ["environment.ready"]
        assert self.progress(scene) == [{"state": "running", "environment": "ab12"}]
        (ready,) = [one.body for one in scene.said if isinstance(one, Note) and one.kind == "event"]
        assert ready["data"] == {"digest": "ab12", "packages": 31, "build_s": 12.5}
        assert ready["message"] == "All workers have the environment of the job: it took 12.5 s."

    def test_a_build_is_an_event_once_and_its_state_is_shown(self) -> None:
        scene = self.scene()
        scene.hear(1, type="prepared", **self.HAVE)
        scene.hear(0, type="preparing", what="environment", state="31 packages")
        assert scene.events() == ["environment.preparing"]
        scene.hear(0, type="preparing", what="environment", state="31 packages, downloading numpy (16.1MiB)")
        assert scene.events() == []
        (shown,) = self.progress(scene)
        assert shown["preparing"] == (
            "the environment is being built: 31 packages, downloading numpy (16.1MiB); 1 of 2 workers are ready"
        )

    def test_a_pull_is_shown_as_one_and_images_that_differ_are_named(self) -> None:
        scene = self.scene()
        scene.hear(0, type="preparing", what="image", state="localhost/x: 3 layers")
        assert scene.events() == ["environment.preparing"]
        (shown,) = self.progress(scene)
        assert (
            shown["preparing"] == "the image is being pulled: localhost/x: 3 layers; 0 of 2 workers are ready"
        )
        scene.hear(0, type="prepared", **self.HAVE)
        scene.hear(1, type="prepared", **(self.HAVE | {"digest": "cd34"}))
        (line,) = [one.body["text"] for one in scene.said if isinstance(one, Note) and one.kind == "log"]
        assert line.startswith("the nodes have different environments or images of this name")
        assert scene.sent("begin") == {"type": "begin"}

    def test_ranks_that_download_inputs_begin_together_too(self) -> None:
        scene = self.scene()
        nothing = {"digest": None, "build_s": 0.0, "packages": 0}
        scene.hear(0, type="preparing", what="inputs", state="100 of 200 files of the input data, 3 GiB")
        assert scene.events() == []
        assert "downloading: 100 of 200 files" in self.progress(scene)[0]["preparing"]
        assert scene.hear(0, type="prepared", **nothing) == []
        scene.hear(1, type="prepared", **nothing)
        assert (scene.events(), self.progress(scene)) == ([], [{"state": "running"}])
        assert scene.sent("begin") == {"type": "begin"}

    def test_a_rank_that_says_it_twice_is_counted_once(self) -> None:
        scene = self.scene()
        assert scene.hear(1, type="prepared", **self.HAVE) == []
        assert scene.hear(1, type="prepared", **self.HAVE) == []

    def test_a_group_without_an_environment_of_its_own_takes_no_such_message(self) -> None:
        scene = Scene()
        assert scene.all(type="prepared", **self.HAVE) == []
        assert scene.all(type="preparing", what="environment", state="0 packages") == []

    def test_a_build_that_fails_is_the_reason_of_the_end(self) -> None:
        scene = self.scene()
        scene.hear(1, type="prepared", **self.HAVE)
        scene.hear(0, type="exit", stopped=False, environment_failed="uv could not build it")
        assert scene.group.exits[0].environment_failed == "uv could not build it"
        assert scene.sent("begin") is None


def test_the_load_of_a_rank_is_passed_on_and_one_without_numbers_is_not() -> None:
    scene = Scene()
    (note,) = scene.hear(1, type="load", cpu=1.5, gpu=None, gpus=0)
    assert note == Note("load", {"rank": 1, "load": {"cpu": 1.5, "gpu": None, "gpus": 0}})
    (remark,) = scene.hear(1, type="load", cpu="x", gpu=None, gpus=0)
    assert isinstance(remark, Note)
    assert remark.kind == "log"


def test_a_rank_saves_until_a_step_has_ended_and_the_first_step_may_be_0() -> None:
    scene = Scene(cooperative=False)
    scene.hear(1, type="saving")
    assert scene.group.is_saving
    scene.hear(1, type="report", step=0)
    assert scene.group.is_saving, "only rank 0 reports steps"
    scene.hear(0, type="report", step=0)
    assert not scene.group.is_saving
    assert scene.group.progress.step == 0
