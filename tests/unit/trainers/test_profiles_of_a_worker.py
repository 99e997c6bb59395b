"""A supervisor has its script profile itself, and stores a trace that the script wrote under the name it was given."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from tests.unit.trainers.supervisor_stage import Stage
from trainers.profiles import MOST_BYTES, profile_name
from trainers.supervisor import disk_watch

TOKEN = "0123456789abcdef" * 2
#: Speaks for itself on the channel, as a stranger may.
SCRIPT = """
import json, os, pathlib, socket
end = socket.socket(fileno=int(os.environ["REMORA_CHANNEL_FD"]))
def say(**message):
    end.sendall(json.dumps(message).encode() + b"\\n")
say(type="hello", version=1, pid=os.getpid())
asked = json.loads(end.makefile().readline())
trace = pathlib.Path(os.environ["REMORA_SCRATCH_DIR"], f"profile-{asked['token']}.json.gz")
"""
ANSWER = 'say(type="profiled", token=asked["token"], steps=asked["steps"])\n'


def answer_of(stage: Stage, rest: str, *, waits_for: str = "hello", **fields: object) -> dict[str, object]:
    supervisor = stage.start(SCRIPT + rest, **fields)  # type: ignore[arg-type]
    stage.driver.wait_for(waits_for)
    supervisor.instruct({"type": "profile", "token": TOKEN, "steps": 3, "within_s": 60.0})
    answer = stage.driver.wait_for("profile")
    assert stage.end()["exit_code"] == 0
    assert answer["token"] == TOKEN
    return answer


def test_the_trace_is_stored_and_leaves_the_node(stage: Stage) -> None:
    left = "import time\nwhile trace.exists(): time.sleep(0.01)\n"
    answer = answer_of(stage, f'trace.write_bytes(b"a trace")\n{ANSWER}{left}')
    digest = hashlib.sha256(b"a trace").hexdigest()
    assert answer == {"type": "profile", "token": TOKEN, "steps": 3, "size_bytes": 7, "sha256": digest}
    assert stage.storage.read_bytes(profile_name("job_1", TOKEN)) == b"a trace"


#: Writes a trace that is not compressed yet, and ends it when the node was looked at some times since.
WRITES_LONG = """
raw = trace.with_suffix("")
raw.write_bytes(bytes(8_192_000))
before = looks.stat().st_size
while looks.stat().st_size < before + 3: pass
raw.unlink()
trace.write_bytes(b"a trace")
"""


def test_a_trace_does_not_count_against_what_the_job_may_have_on_the_disk(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, count = stage.folder / "looks", disk_watch.used_bytes
    looks.touch()

    def note(*asked: Any) -> int:
        size = count(*asked)
        with looks.open("a") as file:
            file.write(".")
        return size

    monkeypatch.setattr(disk_watch, "_PAUSE_S", 0.01)
    monkeypatch.setattr(disk_watch, "used_bytes", note)
    answer = answer_of(
        stage,
        f"looks = pathlib.Path({str(looks)!r})\n{WRITES_LONG}{ANSWER}",
        max_disk_bytes=4_096_000,
        isolation="none",
    )
    assert answer["size_bytes"] == 7


@pytest.mark.parametrize(
    ("act", "text"),
    [
        ("", "No such file"),
        ('trace.symlink_to("/etc/passwd")\n', "leads through a link"),
        ("trace.mkdir()\n", "is no file"),
        ("os.mkfifo(trace)\n", "is no file"),
        (f"trace.touch(); os.truncate(trace, {MOST_BYTES + 1})\n", "ask for fewer steps"),
    ],
)
def test_what_is_no_trace_is_refused_in_one_sentence(stage: Stage, act: str, text: str) -> None:
    answer = answer_of(stage, act + ANSWER)
    assert text in str(answer["error"])
    assert str(answer["error"]).startswith("its trace could not be stored: ")
    assert not stage.storage.exists(profile_name("job_1", TOKEN))


def test_what_a_script_says_is_passed_on_without_secrets_and_an_answer_to_no_question_is_not(
    stage: Stage,
) -> None:
    answer = answer_of(
        stage,
        'say(type="profiled", token="another", steps=1)\n'
        'say(type="profiled", token=asked["token"], error="no, " + os.environ["KEY"])\n'
        'say(type="profiled", token=asked["token"], steps=1)\n',
        values={"KEY": "canary-of-a-secret"},
        secrets={"KEY": "KEY"},
    )
    assert answer["error"] == "no, [secret KEY]"
    assert len(stage.driver.all("profile")) == 1


def test_a_script_without_the_library_gets_the_reason(stage: Stage) -> None:
    supervisor = stage.start("print('begins', flush=True)\nimport time\ntime.sleep(60)")
    stage.driver.wait_for("log")
    supervisor.instruct({"type": "profile", "token": TOKEN, "steps": 3, "within_s": 60.0})
    answer = stage.driver.wait_for("profile")
    assert "let it call training.report(step) of remora.training after each step" in str(answer["error"])
    supervisor.instruct({"type": "stop", "at_once": True})
    stage.end()
