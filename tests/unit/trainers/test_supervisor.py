"""One rank's supervisor with a real child; the driver is played by the test."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from remora.isolation import Isolation
from tests.kept_apart import decide_or_skip
from tests.unit.trainers.supervisor_stage import ROOT, Driver, Stage
from tests.unit.trainers.test_child import is_gone, wait_until_gone
from trainers.checkpoints.catalog import Catalog
from trainers.node_folders import shared_folder
from trainers.processes.fork_server_client import ForkServer
from trainers.supervisor import supervisor as module
from trainers.supervisor import worker_process
from trainers.supervisor.assignment import ChildFailed, PlannedStop
from trainers.supervisor.kept_checkpoints import give_back
from trainers.supervisor.memory_files import write_record
from trainers.supervisor.node_sweep import sweep_node
from trainers.supervisor.outbox import Outbox
from trainers.supervisor.output_links import first_of_node, link_outputs
from trainers.supervisor.supervisor import Supervisor
from trainers.worker_identity import WorkerIdentity


def test_a_python_command_is_forked_from_the_warm_interpreter(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    warm = ForkServer(tmp_path / "fork-server", os.getpid(), ["json"])
    monkeypatch.setattr(module, "job_fork_server", lambda modules, _: warm if modules == ("json",) else None)
    stage.start("import os; print(os.environ['RANK'])", variables={}, warm_modules=("json",))
    assert stage.end() == {"type": "exit", "stopped": False, "exit_code": 0}
    assert stage.driver.all("started")[0]["is_warm"] is True
    assert [line["text"] for line in stage.driver.all("log")] == ["1"]


def test_a_command_that_succeeds(stage: Stage) -> None:
    stage.start("import os; print(os.environ['RANK'], os.path.exists('train.py'))")
    assert stage.end() == {"type": "exit", "stopped": False, "exit_code": 0}
    assert stage.outcome is None
    assert stage.driver.all("log") == [{"type": "log", "stream": "stdout", "text": "1 True"}]


def test_a_command_sees_what_its_job_asks_of_an_elastic_loop(stage: Stage) -> None:
    stage.start("import os; print(os.environ['REMORA_SHARDS'])", elastic_variables={"REMORA_SHARDS": "12"})
    stage.end()
    assert [line["text"] for line in stage.driver.all("log")] == ["12"]


def test_a_command_that_fails_fails_for_ray_train(stage: Stage) -> None:
    stage.start("raise SystemExit(3)")
    assert stage.end() == {"type": "exit", "stopped": False, "exit_code": 3}
    assert isinstance(stage.outcome, ChildFailed)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"bundle": "sha256:00"}, "the code bundle sha256:00 is not in the storage any more"),
        ({"command": ["trane"]}, "trane: No such file or directory"),
        ({"command": ["python", "x" * 5_000_000]}, "its arguments and environment variables are too long"),
        ({"command": ["python", "a\0b"]}, "embedded null byte"),
    ],
)
def test_what_cannot_be_started_says_why(stage: Stage, fields: dict[str, Any], said: str) -> None:
    stage.start(**fields)
    assert stage.end() == {"type": "exit", "stopped": False, "start_failed": said}


def test_a_storage_that_fails_is_no_fault_of_the_script(stage: Stage) -> None:
    stage.start(storage_url="nosuch://storage")
    last = stage.end()
    assert last["type"] == "trouble"
    assert "preparing the code failed" in last["message"]


def test_a_supervisor_that_fails_says_what_happened(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "file").write_text("where its folder should be")
    monkeypatch.setenv("REMORA_WORK_DIR", str(tmp_path / "file"))
    stage.start()
    last = stage.end()
    assert last["type"] == "trouble"
    assert "the supervisor failed: FileExistsError" in last["message"]


def test_a_checkpoint_of_a_rank_reaches_the_storage(stage: Stage) -> None:
    stage.start(
        "from remora import training\n"
        "with training.checkpoint(7) as folder: (folder / 'rank-1').write_text('x')\n"
        "assert not folder.exists()"
    )
    assert stage.end()["exit_code"] == 0, stage.driver.messages
    (shard,) = stage.driver.all("shard")
    (file,) = shard["files"]
    assert (shard["step"], shard["asked"], file.name, file.rank) == (7, False, "rank-1", 1)
    assert stage.storage.read_bytes("jobs/job_1/checkpoints/000000000007-1-1/rank-1") == b"x"


def test_a_step_that_is_checkpointed_again_gets_a_folder_of_its_own(stage: Stage) -> None:
    """A script that went back; a rank that raised inside a checkpoint counts it like the others, which made theirs."""
    stage.start(
        "from remora import training\n"
        "for content in 'ab':\n"
        "    with training.checkpoint(7) as folder: (folder / 'part').write_text(content)\n"
        "try:\n"
        "    with training.checkpoint(8) as folder: raise KeyError\n"
        "except KeyError:\n"
        "    with training.checkpoint(8) as folder: (folder / 'part').write_text('c')\n"
    )
    assert stage.end()["exit_code"] == 0, stage.driver.messages
    shards = {(one["step"], one["take"]) for one in stage.driver.all("shard")}
    assert shards == {(7, 1), (7, 2), (8, 2)}
    folder = "jobs/job_1/checkpoints/0000000000"
    found = [stage.storage.read_bytes(f"{folder}{end}/part") for end in ("07-1-1", "07-1-1-2", "08-1-1-2")]
    assert found == [b"a", b"b", b"c"]


KILLED = """
import os
import sys
from remora.isolation import Isolation
from remora import training
with training.checkpoint(7, size_bytes=100) as folder:
    (folder / 'part').write_text('x')
    print(folder, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("isolation", ["none", "auto", "namespaces"])
def test_a_script_that_is_killed_right_after_it_handed_over_loses_nothing(
    stage: Stage, isolation: Isolation
) -> None:
    walls = decide_or_skip(isolation)
    stage.start(KILLED, isolation=isolation)
    assert stage.end() == {"type": "exit", "stopped": False, "signal": 9}
    (shard,) = stage.driver.all("shard")
    assert (shard["step"], [file.name for file in shard["files"]]) == (7, ["part"])
    assert stage.storage.read_bytes("jobs/job_1/checkpoints/000000000007-1-1/part") == b"x"
    folder = Path(stage.driver.all("log")[0]["text"])
    assert folder.is_relative_to(stage.memory if walls is None else "/dev/shm"), "it lay in memory"
    give_back("att_1")
    assert list(stage.memory.iterdir()) == [], "nothing of it is left there"


def test_a_killed_script_is_reported_before_its_files_are_stored(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen_by_driver, put = [], Catalog.put

    def put_late(*arguments: Any, **named: Any) -> Any:
        seen_by_driver.append(stage.driver.wait_for("killed"))
        return put(*arguments, **named)

    monkeypatch.setattr(Catalog, "put", put_late)
    stage.start(KILLED)
    assert stage.end() == {"type": "exit", "stopped": False, "signal": 9}
    assert seen_by_driver == [{"type": "killed"}]
    assert stage.driver.all("shard")[0]["step"] == 7


@pytest.mark.parametrize(("line", "killed"), [
    ("{python} train.py; code=$?; exit $code", [{"type": "killed"}]),
    ("exit 9", []),
])  # fmt: skip
def test_a_script_under_a_shell_that_is_killed_is_reported_like_one_without(
    stage: Stage, line: str, killed: list[dict[str, Any]]
) -> None:
    script = line.format(python=sys.executable)
    stage.start("import os; os.kill(os.getpid(), 9)", command=["bash", "-c", script])
    assert stage.end() == {"type": "exit", "stopped": False, "exit_code": 137 if killed else 9}
    assert stage.driver.all("killed") == killed


def test_an_exit_code_of_a_script_without_a_shell_is_its_own(stage: Stage) -> None:
    stage.start("raise SystemExit(137)")
    assert stage.end() == {"type": "exit", "stopped": False, "exit_code": 137}
    assert stage.driver.all("killed") == []


def test_a_script_that_ends_itself_because_it_is_stuck_is_reported_as_that(stage: Stage) -> None:
    stage.start(
        "import os\n"
        "from remora import training\n"
        "training.open_link().send({'type': 'stuck', 'text': 'an abort did not return'})\n"
        "os._exit(75)\n"
    )
    assert stage.end() == {
        "type": "exit", "stopped": False, "exit_code": 75, "stuck": "an abort did not return",
    }  # fmt: skip
    assert stage.driver.all("killed") == [{"type": "killed", "stuck": "an abort did not return"}]


def test_what_does_not_fit_into_memory_is_written_to_the_disk(stage: Stage) -> None:
    stage.start(KILLED.replace("100", "1 << 60"))
    stage.end()
    assert not Path(stage.driver.all("log")[0]["text"]).is_relative_to(stage.memory_of_scripts)
    assert stage.storage.read_bytes("jobs/job_1/checkpoints/000000000007-1-1/part") == b"x"


def test_without_a_file_system_in_memory_the_disk_has_to_do(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.supervisor.snapshot_memory._MEMORY", Path("/no/such/folder"))
    stage.start(KILLED)
    stage.end()
    assert len(stage.driver.all("shard")) == 1


def test_what_a_killed_supervisor_left_in_memory_is_swept_by_the_next_one(stage: Stage) -> None:
    left = stage.memory / "att_0-1-0-1"
    left.mkdir(parents=True)
    left.with_name("att_0-1-0-1.lock").touch()
    stage.start(WAITING)
    stage.driver.wait_for("report")
    assert not left.exists()


def test_files_of_a_group_that_was_followed_do_not_become_those_of_the_next_one(stage: Stage) -> None:
    running = stage.start(
        "from remora import training\n"
        "training.report(1)\n"
        "link = training.open_link()\n"
        "link.await_regroup(1)\n"
        "with training.hand_over(7, generation=1) as folder: (folder / 'part').write_text('x')"
    )
    stage.driver.wait_for("report")
    numbers = dict.fromkeys(("rank", "local_rank", "node_rank"), 0) | dict.fromkeys(
        ("world_size", "local_world_size"), 1
    )
    running.instruct(
        {
            "type": "regroup",
            "generation": 2,
            "num_nodes": 1,
            "master_addr": "127.0.0.1",
            "master_port": 1,
            **numbers,
        }
    )
    assert stage.driver.wait_for("shard")["generation"] == 1
    assert stage.end()["exit_code"] == 0
    assert stage.storage.exists("jobs/job_1/checkpoints/000000000007-1-1/part")


def test_a_checkpoint_that_cannot_be_stored_is_abandoned(stage: Stage) -> None:
    blocked = stage.folder / "blocked"
    blocked.write_text("not a folder")
    stage.start(
        "from remora import training\n"
        "with training.checkpoint(7) as folder: (folder / 'x').write_text('x')\n",
        checkpoint_url=str(blocked),
    )
    assert stage.end()["exit_code"] == 0
    assert stage.driver.wait_for("abandoned") == {"type": "abandoned", "step": 7, "generation": 1}
    assert "could not be stored" in stage.driver.all("log")[0]["text"]


def test_a_script_cannot_speak_for_its_supervisor(stage: Stage) -> None:
    stage.start(
        "import json, os, socket\n"
        "end = socket.socket(fileno=int(os.environ['REMORA_CHANNEL_FD']))\n"
        "def say(**fields): end.sendall(json.dumps(fields).encode() + b'\\n')\n"
        "say(type='exit', exit_code=0); say(type='shard', step=1, files=[]); say(type='trouble', message='x')\n"
        "say(type='log', stream='remora', text='x'); say(type='checkpoint'); say(type='checkpoint', step='x')\n"
        "say(type='checkpoint', step=1, folder='/no/such/folder')\n"
        "say(type='hello', version=1, pid=1)\n"
        "raise SystemExit(4)"
    )
    assert stage.end()["exit_code"] == 4
    kinds = [message["type"] for message in stage.driver.messages]
    assert kinds.count("exit") == 1
    assert kinds.count("hello") == 1
    assert not {"shard", "trouble"} & set(kinds)
    said = [message["text"] for message in stage.driver.all("log")]
    assert ["not understood" in text for text in said] == [True, True, False], said
    assert "could not be taken" in said[2]


SAY = """
import json, os, socket
end = socket.socket(fileno=int(os.environ['REMORA_CHANNEL_FD']))
def say(**fields): end.sendall(json.dumps(fields).encode() + b'\\n')
scratch = os.environ['REMORA_SCRATCH_DIR']
"""


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    """A folder of another user."""
    folder = tmp_path / "canary"
    folder.mkdir()
    (folder / "bird").write_text("sings")
    return folder


@pytest.mark.parametrize(
    "offered",
    [
        "folder={canary!r}",
        "folder=os.path.relpath({canary!r})",
        "folder=os.path.join(scratch, os.path.relpath({canary!r}, scratch))",
        "folder=os.path.relpath({canary!r}, scratch)",
        "folder=os.path.relpath({canary!r}, os.environ['REMORA_MEMORY_DIR']), room='memory'",
        "folder=(os.symlink({canary!r}, scratch + '/link'), 'link')[1]",
        "folder=(os.symlink({canary!r}, scratch + '/link'), scratch + '/link')[1]",
        "folder=(os.symlink(os.path.dirname({canary!r}), scratch + '/up'), scratch + '/up/canary')[1]",
        "folder=scratch",
        "folder='.'",
        "folder=''",
        "folder='x' * 5000",
        "folder='x/' * 5000 + 'x'",
        "folder='canary', room={canary!r}",
        "folder=['canary'], room=['scratch']",
    ],
)
def test_a_script_hands_over_no_folder_but_those_that_it_was_given(
    stage: Stage, canary: Path, offered: str
) -> None:
    stage.start(
        f"{SAY}\nsay(type='checkpoint', step=1, {offered.format(canary=str(canary))})\n"
        "os.mkdir(scratch + '/mine')\nopen(scratch + '/mine/part', 'w').write('x')\n"
        "say(type='checkpoint', step=2, folder=scratch + '/mine')"
    )
    assert stage.end()["exit_code"] == 0
    assert (canary / "bird").read_text() == "sings"
    assert [message["step"] for message in stage.driver.all("shard")] == [2], "the worker goes on"
    (said,) = [message["text"] for message in stage.driver.all("log")]
    assert said.startswith(("the checkpoint of step 1 could not be taken: ", "a checkpoint message was not "))
    assert len(said) < 500
    assert "Errno" not in said


def test_a_link_in_a_handed_over_folder_is_not_followed(stage: Stage, canary: Path) -> None:
    stage.start(
        "import os\nfrom remora import training\n"
        f"with training.checkpoint(7) as folder:\n"
        f"    os.symlink({str(canary)!r}, folder / 'link'); os.symlink({str(canary / 'bird')!r}, folder / 'bird')\n"
        "    (folder / 'part').write_text('x')"
    )
    assert stage.end()["exit_code"] == 0
    (shard,) = stage.driver.all("shard")
    assert [file.name for file in shard["files"]] == ["part"]
    assert (canary / "bird").read_text() == "sings"


@pytest.mark.parametrize(
    "fields", ["step=-1", "step=2 ** 60", "step=1, generation=2", "step=1, generation=-1"]
)
def test_a_script_stores_nothing_for_steps_and_groups_that_cannot_be(stage: Stage, fields: str) -> None:
    stage.start(
        f"{SAY}\nos.mkdir(scratch + '/mine')\nopen(scratch + '/mine/part', 'w').write('x')\n"
        f"say(type='checkpoint', folder=scratch + '/mine', {fields})"
    )
    assert stage.end()["exit_code"] == 0
    assert stage.storage.names("jobs/job_1/checkpoints") == []
    assert ["not understood" in message["text"] for message in stage.driver.all("log")] == [True]


#: Files in memory: one that stays open, one that it closes, one that it maps alone; a child of it has them, too.
SHARES = """
import mmap, os, signal, sys, time
from remora import training
opened, closed, mapped = (f"{sys.argv[1]}/{end}" for end in ("opened", "closed", "mapped"))
files = [open(path, "w+b") for path in (opened, closed, mapped)]
for file in files:
    file.write(b"x" * 4096); file.flush()
view = mmap.mmap(files[2].fileno(), 4096)
if os.fork() == 0:
    signal.pause()
training.report(1)
while not os.path.exists(sys.argv[2]): time.sleep(0.01)
files[1].close(); files[2].close()
training.report(2)
if sys.argv[3] != "return":
    signal.pause()
"""


@pytest.fixture
def in_memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in this machine's memory that passes for all of it: tests that run beside this one sweep, too."""
    memory = Path(f"/dev/shm/remora-test-{uuid.uuid4().hex[:12]}")
    memory.mkdir()
    monkeypatch.setattr("trainers.supervisor.snapshot_memory._MEMORY", memory)
    yield memory
    shutil.rmtree(memory)


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Wait until a watch has put down that number of files."""
    changed, counts = threading.Condition(), [0]

    def write(record: Path, names: Mapping[int, str]) -> None:
        write_record(record, names)
        with changed:
            counts.append(len(names))
            changed.notify_all()

    def wait(count: int) -> None:
        with changed:
            assert changed.wait_for(lambda: counts[-1] == count, 20.0), counts

    monkeypatch.setattr("trainers.supervisor.memory_watch.write_record", write)
    return wait


@pytest.mark.parametrize("way", ["return", "its shim is killed", "its driver ends it", "it is killed"])
def test_what_a_command_made_in_memory_goes_with_its_worker(
    stage: Stage, in_memory: Path, recorded: Callable[[int], None], tmp_path: Path, way: str
) -> None:
    go = tmp_path / "go"
    running = stage.start(
        SHARES,
        rank=0,
        command=[sys.executable, "train.py", str(in_memory), str(go), way.split()[0]],
        isolation="none",
    )
    stage.driver.wait_for("report")
    recorded(3)
    go.touch()
    stage.driver.wait_for("report", 2)
    shim = psutil.Process(stage.driver.all("started")[0]["pid"])
    if way == "its shim is killed":
        shim.kill()
    elif way == "it is killed":
        max(shim.children(recursive=True), key=lambda one: -one.create_time()).kill()
    elif way != "return":
        running.instruct({"type": "stop", "at_once": True})
    stage.end()
    assert left_in(in_memory) == []


def left_in(memory: Path) -> list[Path]:
    """All that lies there but for the folder of this user."""
    own = memory / f"remora-{os.getuid()}"
    return [path for path in memory.rglob("*") if path != own]


def test_a_command_that_fills_the_memory_of_its_machine_is_ended_with_a_sentence(
    stage: Stage, in_memory: Path
) -> None:
    fills = (
        "import signal, sys\n"
        "with open(f'{sys.argv[1]}/a', 'wb') as file:\n"
        "    file.write(b'x' * 8_192_000); file.flush(); signal.pause()\n"
    )
    stage.start(
        fills, command=[sys.executable, "train.py", str(in_memory)], max_shm_bytes=4_096_000, isolation="none"
    )
    end = stage.end()
    why = end.pop("excess")
    assert end == {"type": "exit", "stopped": False, "signal": 9}
    assert re.fullmatch(
        r"its files in /dev/shm have \d\.\d MiB \(\d{7} bytes\), and those of one worker may have 3\.9 MiB"
        r" \(4096000 bytes, REMORA_MAX_SHM_BYTES\); let it keep less there, or have operators allow more",
        why,
    )
    assert stage.driver.all("killed") == [], "the others cannot go on without it: it would do the same again"
    assert [line["text"] for line in stage.driver.all("log")] == [f"the command is ended: {why}"]


KILLED_SUPERVISOR = """
import signal, sys, threading
from pathlib import Path
from trainers.processes.child import Child
from trainers.supervisor.memory_watch import MemoryWatch
from trainers.supervisor.snapshot_memory import snapshot_space
from trainers.supervisor import memory_watch, snapshot_memory

snapshot_memory._MEMORY = Path(sys.argv[1])

def write(record, names, write=memory_watch.write_record):
    write(record, names)
    print("recorded", flush=True)

memory_watch.write_record = write
with snapshot_space("att_1-1-0-1", 1) as space:
    watch = MemoryWatch(space.memory, space.own, space.record, 1 << 30, print)
    code = f"import signal; f = open('{sys.argv[1]}/a', 'wb'); f.write(b'x'); f.flush(); signal.pause()"
    child = Child(
        [sys.executable, "-c", code], folder=Path("/"), environment={}, line_bytes=100, grace_s=1.0,
        on_lines=print, on_message=print,
    )
    watch.start(child.processes)
    print(child.pid, flush=True)
    signal.pause()
"""


def test_what_a_command_made_in_memory_is_swept_when_its_supervisor_was_killed(in_memory: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED_SUPERVISOR, str(in_memory)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as supervisor:
        assert supervisor.stdout is not None
        said = [supervisor.stdout.readline().strip() for _ in range(2)]
        assert "recorded" in said
        supervisor.kill()
    (pid,) = (int(word) for word in said if word.isdigit())
    wait_until_gone(pid)
    assert (in_memory / "a").exists()
    # Ends what may still be in its cgroup first.
    sweep_node()
    assert left_in(in_memory) == []


WAITING = "from remora import training\ntraining.report(1)\nimport signal; signal.pause()"


@pytest.mark.parametrize("at_once", [True, False])
def test_a_planned_stop_is_reported_as_one(stage: Stage, at_once: bool) -> None:
    running = stage.start(WAITING)
    stage.driver.wait_for("report")
    running.instruct({"type": "stop", "at_once": at_once})
    assert stage.end() == {"type": "exit", "stopped": True, "signal": 9 if at_once else 15}
    assert isinstance(stage.outcome, PlannedStop)


def test_a_stop_that_comes_before_the_child_ends_it_too(driver: Driver, stage: Stage) -> None:
    driver.is_slow.clear()
    running = stage.start(WAITING)
    running.instruct({"type": "stop", "at_once": True})
    driver.is_slow.set()
    assert stage.end()["stopped"] is True


def test_a_child_does_not_outlive_its_driver(driver: Driver, stage: Stage) -> None:
    stage.start(WAITING)
    shim = psutil.Process(driver.wait_for("started")["pid"])
    driver.wait_for("report")
    driver.is_dead = True
    assert stage.supervisor is not None
    stage.supervisor._outbox.put({"type": "report", "step": 2})
    stage.end()
    assert isinstance(stage.outcome, PlannedStop)
    assert is_gone(shim.pid)


ASKED = """
from remora import training
training.report(1)
while not training.should_checkpoint(): pass
with training.checkpoint(5): pass
training.report(6)
"""


def asked(stage: Stage, *, stop: bool) -> Supervisor:
    running = stage.start(ASKED, rank=0)
    stage.driver.wait_for("report")
    running.instruct({"type": "hold", "token": 1})
    held = stage.driver.wait_for("held")
    running.instruct({"type": "decide", "token": 1, "boundary": held["boundary"] + 1, "stop": stop})
    assert stage.driver.wait_for("shard")["asked"] is True
    return running


def test_a_script_goes_on_after_a_periodic_checkpoint(stage: Stage) -> None:
    asked(stage, stop=False)
    assert stage.driver.wait_for("report", 2)["step"] == 6
    assert stage.end()["exit_code"] == 0


def test_a_script_stands_still_before_its_planned_end(stage: Stage) -> None:
    running = asked(stage, stop=True)
    running.instruct({"type": "stop", "at_once": True})
    assert stage.end() == {"type": "exit", "stopped": True, "signal": 9}
    assert len(stage.driver.all("report")) == 1, "no step was done after the checkpoint"


def test_a_script_goes_on_when_its_planned_end_is_called_off(stage: Stage) -> None:
    running = asked(stage, stop=True)
    running.instruct({"type": "release", "token": 1})
    assert stage.driver.wait_for("report", 2)["step"] == 6
    assert stage.end()["exit_code"] == 0


#: It has written the files of its checkpoint once it gets a signal.
SAVES_LONG = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
from remora import training
training.report(1)
while not training.should_checkpoint(): pass
with training.checkpoint(5): signal.sigwait([signal.SIGUSR1])
training.report(6)
"""


def test_a_script_does_not_stand_still_after_what_an_agreement_asked_for_that_was_given_up(
    stage: Stage,
) -> None:
    running = stage.start(SAVES_LONG, rank=0)
    stage.driver.wait_for("report")
    running.instruct({"type": "hold", "token": 1})
    first = stage.driver.wait_for("held")["boundary"] + 1
    running.instruct({"type": "decide", "token": 1, "boundary": first, "stop": True})
    stage.driver.wait_for("saving")
    running.instruct({"type": "release", "token": 1})
    running.instruct({"type": "decide", "token": 2, "boundary": first + 100, "stop": True})
    os.kill(stage.driver.wait_for("hello")["pid"], signal.SIGUSR1)
    assert stage.driver.wait_for("report", 2)["step"] == 6
    shard = stage.driver.wait_for("shard")
    assert (shard["asked"], shard["token"]) == (True, 1)
    assert stage.end()["exit_code"] == 0


def test_of_another_rank_than_0_the_driver_hears_that_it_trains(stage: Stage) -> None:
    """It dropped what else they reported: thousands of messages a second."""
    stage.start("from remora import training\nfor step in range(1, 100): training.report(step)", rank=1)
    assert stage.end()["exit_code"] == 0
    assert [message["step"] for message in stage.driver.all("report")] == [1]


WRITES = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["REMORA_OUTPUTS_DIR"])
assert sys.argv[1] == str(folder / "final")
(folder / "final" / "weights").write_text("w")
print(os.environ["MLFLOW_TRACKING_URI"].removeprefix(folder.as_uri()))
sys.exit(3)
"""


def test_a_worker_that_joins_leaves_the_folders_of_those_that_run_on_its_node_alone(
    stage: Stage, tmp_path: Path
) -> None:
    """Its ranks are assigned once it has joined: until then they may be a running worker's of the same group."""
    (tmp_path / "work").mkdir(mode=0o700)
    with shared_folder("att_1-1", tmp_path / "work") as theirs:
        (theirs / "scratch-1").mkdir()
        (theirs / "outputs-0").mkdir()
        (theirs / "outputs-0" / "model").write_bytes(b"being written")
        stage.start("print('joined')", is_joining=True, outputs=("final",))
        assert stage.end()["exit_code"] == 0
        assert (theirs / "outputs-0" / "model").read_bytes() == b"being written"
        assert sorted(path.name for path in theirs.iterdir()) == ["outputs-0", "scratch-1"]
    assert list((tmp_path / "work").iterdir()) == []


@pytest.mark.parametrize("lock", ["links.lock", "files.lock"])
def test_a_link_in_the_place_of_a_lock_empties_nothing(tmp_path: Path, lock: str) -> None:
    canary = tmp_path / "canary"
    canary.write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / lock).symlink_to(canary)
    identity = WorkerIdentity(
        job_id="job_1", attempt_id="att_1", attempt=1, generation=1, rank=1, world_size=2, local_rank=1,
        local_world_size=2, node_rank=0, num_nodes=1, master_addr="127.0.0.1", master_port=29500,
    )  # fmt: skip

    def both() -> None:
        link_outputs(tmp_path, tmp_path / "folder", identity, {}, is_joining=False)
        with first_of_node(tmp_path / "folder", "files"):
            pass

    with pytest.raises(OSError, match="symbolic"):
        both()
    assert canary.read_text() == "precious"


def test_outputs_are_stored_before_the_end_is_reported(stage: Stage) -> None:
    command = [sys.executable, "train.py", "${{outputs.final}}"]
    stage.start(WRITES, command=command, outputs=("final",))
    assert stage.end()["exit_code"] == 3
    kinds = [message["type"] for message in stage.driver.messages]
    assert kinds.index("outputs") < kinds.index("exit")
    (file,) = stage.driver.all("outputs")[0]["changes"].written
    assert (file.name, file.rank) == ("final/weights", 1)
    assert stage.storage.read_bytes(f"jobs/job_1/outputs/{file.stored}") == b"w"
    assert "/mlruns/1-1" in [message["text"] for message in stage.driver.all("log")]


ALWAYS_THERE = """
import pathlib
pathlib.Path("runs/deep").mkdir(parents=True, exist_ok=True)
pathlib.Path("runs/deep/a").write_text("a")
"""


def test_a_folder_that_the_script_always_writes_to_is_an_output(stage: Stage) -> None:
    stage.start(
        ALWAYS_THERE, outputs=("results", "code"), output_paths={"runs": "results", "train.py": "code"}
    )
    assert stage.end()["exit_code"] == 0
    (file,) = stage.driver.all("outputs")[0]["changes"].written
    assert file.name == "results/deep/a"
    assert [message["text"] for message in stage.driver.all("log")] == [
        "train.py is in the code, so what is written there is not kept"
    ]


#: PyTorch's tutorial on torchrun keeps its snapshot in the working folder.
SNAPSHOT = """
import os, pathlib
assert not os.path.exists("snapshot.pt")
pathlib.Path("snapshot.new").write_text("epoch 3")
os.replace("snapshot.new", "snapshot.pt")
"""


def test_a_file_of_the_working_folder_is_an_output(stage: Stage) -> None:
    stage.start(SNAPSHOT, outputs=("snapshot",), output_files={"snapshot.pt": "snapshot"})
    assert stage.end()["exit_code"] == 0
    *_, stored, end = [message["changes"] for message in stage.driver.all("outputs")]
    assert [(file.name, file.size_bytes) for file in stored.written] == [("snapshot/snapshot.pt", 7)]
    assert (end.end, end.busy, end.written) == ("clean", frozenset(), ())


def test_a_worker_answers_every_round_that_the_driver_asks_it_in(stage: Stage) -> None:
    supervisor = stage.start("import threading; print('runs', flush=True); threading.Event().wait()")
    stage.driver.wait_for("log")
    supervisor.instruct({"type": "look", "round": 7})
    changes = stage.driver.wait_for("outputs")["changes"]
    assert (changes.round, changes.busy, changes.written, changes.end) == (7, frozenset(), (), None)


def test_a_notice_has_outputs_stored_at_once(stage: Stage) -> None:
    writes = (
        "import os, pathlib, threading\n"
        "path = pathlib.Path(os.environ['REMORA_OUTPUTS_DIR'], 'snapshot')\n"
        "path.write_text('s')\n"
        "os.utime(path, (1e9, 1e9))\n"
        "print('written')\n"
        "threading.Event().wait()\n"
    )
    supervisor = stage.start(writes)
    stage.driver.wait_for("log")
    supervisor.instruct({"type": "preemption", "deadline_at": None})
    (file,) = stage.driver.wait_for("outputs")["changes"].written
    assert file.name == "snapshot"


def test_variables_have_what_only_the_worker_knows(stage: Stage) -> None:
    variables = {"RUN": "${{job.id}}/${{ job.attempt }}", "AT": "${{master.address}}:${{master.port}}"}
    stage.start("import os; print(os.environ['RUN'], os.environ['AT'])", variables=variables)
    stage.end()
    assert stage.driver.all("log")[0]["text"] == "job_1/1 127.0.0.1:29500"


LEAVES = """
import os, signal, sys, tempfile
from remora import training
folder = tempfile.mkdtemp()
open(folder + "/left", "w").write("x")
os.symlink(sys.argv[1], folder + "/link")
os.symlink(sys.argv[1] + "/bird", folder + "/bird")
os.chmod(folder, 0o500)
print(os.environ["TMPDIR"], folder, oct(os.stat(os.environ["TMPDIR"]).st_mode & 0o777), flush=True)
training.report(1)
if sys.argv[2] != "return":
    signal.pause()
"""


@pytest.mark.parametrize("way", ["return", "its shim is killed", "its driver ends it"])
def test_temporary_files_of_a_command_go_with_its_worker_and_no_link_in_them_is_followed(
    stage: Stage, canary: Path, way: str
) -> None:
    running = stage.start(
        LEAVES, command=[sys.executable, "train.py", str(canary), way.split()[0]], isolation="none"
    )
    stage.driver.wait_for("report")
    if way == "its shim is killed":
        psutil.Process(stage.driver.all("started")[0]["pid"]).kill()
    elif way != "return":
        running.instruct({"type": "stop", "at_once": True})
    stage.end()
    variable, folder, mode = stage.driver.all("log")[0]["text"].split()
    assert Path(folder).parent == Path(variable)
    assert Path(variable).parent == stage.temporary
    assert mode == "0o700"
    assert list(stage.temporary.iterdir()) == []
    assert (canary / "bird").read_text() == "sings"


def test_a_forked_command_has_its_own_temporary_folder(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    warm = ForkServer(tmp_path / "fork-server", os.getpid(), ["tempfile"])
    monkeypatch.setattr(module, "job_fork_server", lambda *_: warm)
    stage.start(
        "import os, tempfile; print(tempfile.gettempdir(), os.environ['TMPDIR'])",
        variables={},
        isolation="none",
    )
    assert stage.end()["exit_code"] == 0
    assert stage.driver.all("started")[0]["is_warm"] is True
    (found, variable) = stage.driver.all("log")[0]["text"].split()
    assert found == variable
    assert Path(found).parent == stage.temporary


def test_a_job_may_say_where_its_temporary_files_lie(stage: Stage) -> None:
    asked = {"TMPDIR": "/tmp/of-${{job.id}}", "TORCHINDUCTOR_CACHE_DIR": "/tmp/compiled"}
    stage.start(
        "import os; print(*(os.environ[name] for name in " + repr(list(asked)) + "))", variables=asked
    )
    stage.end()
    assert stage.driver.all("log")[0]["text"] == "/tmp/of-job_1 /tmp/compiled"


def test_what_torch_compiles_is_kept_for_the_next_worker_of_the_node(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    # PyTorch sets it in whatever process compiles, as other tests have this one do.
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    stage.start("import os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])", isolation="none")
    stage.end()
    assert stage.driver.all("log")[0]["text"] == str(stage.folder / "work" / "torchinductor")


def test_temporary_files_of_a_killed_supervisor_are_removed_by_the_next_one(stage: Stage) -> None:
    left = stage.temporary / "0123abcd"
    left.mkdir(parents=True)
    (left / "file").touch()
    left.with_name("0123abcd.lock").touch()
    stage.start(WAITING)
    stage.driver.wait_for("report")
    assert not left.exists()


def test_what_a_launcher_exports_has_the_same(stage: Stage) -> None:
    command = ["mpirun", "-x", "RUN=${{job.id}}", "-x", "OMP_NUM_THREADS=3", sys.executable, "train.py"]
    stage.start("import os; print(os.environ['RUN'], os.environ['OMP_NUM_THREADS'])", command=command)
    stage.end()
    assert stage.driver.all("log")[0]["text"] == "job_1 3"


def test_where_mlflow_logs_to_is_the_jobs_own_affair(stage: Stage) -> None:
    says = "import os; print(os.environ['MLFLOW_TRACKING_URI'], 'MLFLOW_ALLOW_FILE_STORE' in os.environ)"
    stage.start(says, variables={"MLFLOW_TRACKING_URI": "https://example.org"})
    stage.end()
    assert stage.driver.all("log")[0]["text"] == "https://example.org False"


def test_a_planned_end_that_is_called_off_before_its_step_lets_the_script_go_on(stage: Stage) -> None:
    running = stage.start(ASKED, rank=0)
    stage.driver.wait_for("report")
    running.instruct({"type": "hold", "token": 1})
    held = stage.driver.wait_for("held")
    running.instruct({"type": "decide", "token": 1, "boundary": held["boundary"] + 50_000, "stop": True})
    running.instruct({"type": "release", "token": 1})
    assert stage.driver.wait_for("report", 2)["step"] == 6
    assert stage.end()["exit_code"] == 0


def test_an_instruction_that_comes_early_is_kept(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_early", [])
    monkeypatch.setattr(worker_process, "_running", None)
    worker_process.instruct({"type": "stop", "at_once": True})
    assert worker_process._early == [{"type": "stop", "at_once": True}]


@pytest.mark.parametrize(("said", "was_killed", "follows"), [
    ([], False, False),
    ([], True, False),
    ([{"again": True}], True, True),
    ([{"again": True}], False, True),
    # The driver could not begin again after all, or the attempt is to end.
    ([{"again": True}, {}], True, False),
    ([{}], True, False),
])  # fmt: skip
def test_another_supervisor_follows_in_the_process_of_a_worker_where_the_driver_says_so(
    said: list[dict[str, Any]], was_killed: bool, follows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"_early": [], "_running": None, "_begins_again": None, "_VERDICT_S": 0.01}.items():
        monkeypatch.setattr(worker_process, name, value)
    monkeypatch.setattr(worker_process, "_has_ended", False)
    monkeypatch.setattr(worker_process, "_assignment", "the next one")
    for more in said:
        worker_process.instruct({"type": "stop", "at_once": True, **more})
    assert worker_process._another_follows(was_killed) is follows
    assert not any(message.get("again") for message in worker_process._early), "it would end the next one"


def test_a_driver_that_is_late_hears_that_the_worker_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    fields = {"_early": [], "_running": None, "_begins_again": None, "_has_ended": False, "_VERDICT_S": 0.01}
    for name, value in fields.items():
        monkeypatch.setattr(worker_process, name, value)
    again = {"type": "stop", "at_once": True, "again": True}
    assert worker_process.instruct(again), "it may still come in time"
    monkeypatch.setattr(worker_process, "_begins_again", None)
    assert not worker_process._another_follows(was_killed=True)
    assert not worker_process.instruct(again)
    assert worker_process.instruct({"type": "stop", "at_once": True}), "there is nothing left to stop"
    with pytest.raises(
        worker_process.WorkerEnded, match=r"^the worker has ended, and takes no other assignment$"
    ):
        worker_process.prepare(None)  # type: ignore[arg-type]


def test_without_an_assignment_nothing_runs() -> None:
    with pytest.raises(RuntimeError, match="without an assignment"):
        worker_process.supervise()


# --- outbox ----------------------------------------------------------------------------------------------------------


def outbox(driver: Driver, gone: Callable[[], None] = lambda: None) -> Outbox:
    return Outbox(driver, 1, 0, gone)


def test_messages_arrive_in_order_and_together(driver: Driver) -> None:
    box = outbox(driver)
    driver.is_slow.clear()
    for number in range(500):
        box.put({"type": "report", "step": number})
    driver.is_slow.set()
    box.close()
    assert [message["step"] for message in driver.messages] == list(range(500))
    assert len(driver.batches) <= 3


def test_the_first_report_of_every_worker_group_goes_at_once(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of a second of every recovery went into a report that waited for others."""
    monkeypatch.setattr("trainers.supervisor.outbox._GATHER_S", 3600.0)
    box = outbox(driver)
    for generation in (1, 2):
        box.generation = generation
        box.put({"type": "report", "step": generation})
        driver.wait_for("report", generation)
    box.put({"type": "report", "step": 3})
    assert len(driver.all("report")) == 2, "the others are gathered"
    box.close()


def test_a_script_that_prints_faster_than_the_driver_takes_has_to_wait(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainers.supervisor.outbox._BACKLOG_BYTES", 1000)
    driver.is_slow.clear()
    box = outbox(driver)
    printed = []

    def chatter() -> None:
        for _ in range(50):
            box.put_lines("stdout", "x" * 99)
            printed.append(1)

    script = threading.Thread(target=chatter)
    script.start()
    with box._changed:
        assert box._changed.wait_for(lambda: box._waiting_bytes >= 1000, 10.0)
    assert len(printed) <= 10, "the others wait"
    driver.is_slow.set()
    script.join(20.0)
    box.close()
    assert len(driver.all("log")) == 50


def test_a_script_waits_while_the_driver_has_no_free_memory_and_its_steps_do_not(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines that no service had stored piled up in the driver, and steps waited behind them."""
    monkeypatch.setattr("trainers.supervisor.outbox._BACKLOG_BYTES", 1000)
    monkeypatch.setattr("trainers.supervisor.outbox._ASK_AGAIN_S", 0.01)
    driver.log_room = 0
    box = outbox(driver)
    box.put({"type": "hello"})
    driver.wait_for("hello")
    printed = []

    def chatter() -> None:
        for number in range(5):
            box.put_lines("stdout", "\n".join(f"{number}-{line:<90}" for line in range(10)))
            printed.append(number)

    script = threading.Thread(target=chatter)
    script.start()
    with box._changed:
        assert box._changed.wait_for(lambda: box._lines.size_bytes >= 900, 10.0)
    for step in range(3):
        box.put({"type": "report", "step": step})
        driver.wait_for("report", step + 1)
    assert driver.all("log") == []
    assert len(printed) < 5
    driver.log_room = 500
    script.join(20.0)
    box.close()
    said = [message["text"].split("-")[0] for message in driver.all("log")]
    assert said == [str(number) for number in range(5) for _ in range(10)]


def test_the_end_of_a_command_waits_for_no_free_memory(driver: Driver) -> None:
    driver.log_room = 0
    box = outbox(driver)
    box.put({"type": "hello"})
    driver.wait_for("hello")
    box.put_lines("stderr", "Traceback")
    box.put({"type": "exit", "exit_code": 1})
    box.close()
    assert [message["type"] for message in driver.messages] == ["hello", "log", "exit"]


def test_lines_beyond_the_limit_are_counted(driver: Driver) -> None:
    driver.log_is_full = True
    box = outbox(driver)
    box.put_lines("stdout", "the last one")
    driver.wait_for("log")
    with box._changed:
        assert box._changed.wait_for(lambda: box._drops_lines, 10.0)
    box.put_lines("stdout", "dropped")
    box.put_lines("stderr", "dropped too")
    box.put_lines("remora", "never dropped")
    box.close()
    assert [message["text"] for message in driver.all("log")] == ["the last one", "never dropped"]
    assert driver.messages[-1] == {"type": "dropped", "lines": 2}


def test_a_dead_driver_is_noticed_once_and_blocks_no_caller(driver: Driver) -> None:
    gone = threading.Event()
    box = outbox(driver, gone.set)
    driver.is_dead = True
    box.put({"type": "hello"})
    assert gone.wait(10.0)
    for _ in range(100):
        box.put_lines("stdout", "x" * 1_000_000)
    assert (box._messages, box._waiting_bytes) == ([], 0), "what no driver will take is not kept"
    box.close()
