"""A worker's secrets: files and variables of its command alone, redacted in all that leaves it, gone at its end."""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.needed import is_weaker
from tests.traces_of_a_value import memory_has
from tests.unit.trainers.supervisor_stage import Driver, Stage
from trainers.environments.commands import EnvironmentFailed
from trainers.processes.fork_server_client import ForkServer
from trainers.secret_values import CHUNK_BYTES, chunks_of, values_of
from trainers.supervisor import secret_files as files_module
from trainers.supervisor import supervisor as module
from trainers.supervisor.node_sweep import sweep_node

CANARY = 'canary-4f1d/\\x"9b7c2e\u00e4'
SECRETS = {"TOKEN": "TOKEN", "WANDB": "WANDB_API_KEY", "FILE_ONLY": None}
VALUES = {
    "TOKEN": CANARY,
    "WANDB": "another-canary-77",
    "FILE_ONLY": "-----BEGIN-----\nthird-canary-line\n-----END-----\n",
}

#: Shows what it has by digests, and says its secret in all ways.
SCRIPT = """
import base64, hashlib, json, os, pathlib, resource, stat, sys, urllib.parse
from remora import training

folder = pathlib.Path(os.environ["REMORA_SECRETS"])
digest = lambda text: hashlib.sha256(text.encode()).hexdigest()[:12]
found = {path.name: digest(path.read_text()) for path in sorted(folder.iterdir())}
modes = {oct(stat.S_IMODE(path.stat().st_mode)) for path in folder.iterdir()}
variables = {name: digest(os.environ[name]) for name in ("TOKEN", "WANDB_API_KEY")}
print(json.dumps({"files": found, "modes": sorted(modes), "variables": variables,
    "others": [name for name in os.environ if name in ("WANDB", "FILE_ONLY")],
    "core": resource.getrlimit(resource.RLIMIT_CORE), "folder": oct(stat.S_IMODE(folder.stat().st_mode)),
    "argv": any("canary" in text for text in open("/proc/self/cmdline"))}))
token = os.environ["TOKEN"]
print("raw", token, flush=True)
print("json", json.dumps(token))
print("base64", base64.b64encode(("user:" + token).encode()).decode())
print("url", urllib.parse.quote(token))
print((folder / "FILE_ONLY").read_text())
for letter in "split " + token + "\\n":
    os.write(1, letter.encode("utf-8", "surrogateescape"))
print("long", "." * 16370, token)
training.report(1, {token: 1.0})
sys.exit("ends with " + token)
"""


@pytest.mark.parametrize("is_forked", [False, True])
def test_secrets_are_files_and_variables_of_the_command_and_nothing_that_it_says(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_forked: bool
) -> None:
    warm = ForkServer(tmp_path / "fork-server", os.getpid(), ["json"]) if is_forked else None
    monkeypatch.setattr(module, "job_fork_server", lambda *_: warm)
    fields: dict[str, Any] = {} if not is_forked else {"variables": {}, "warm_modules": ("json",)}
    stage.start(SCRIPT, values=VALUES, secrets=SECRETS, **fields)
    assert stage.end()["exit_code"] == 1
    assert stage.driver.all("started")[0]["is_warm"] is is_forked
    first, *lines = [line["text"] for line in stage.driver.all("log") if line["stream"] == "stdout"]
    shown = json.loads(first)
    assert shown["files"] == {name: digest(value) for name, value in VALUES.items()}
    assert shown["variables"] == {"TOKEN": digest(CANARY), "WANDB_API_KEY": digest(VALUES["WANDB"])}
    assert (shown["modes"], shown["folder"], shown["others"]) == (["0o400"], "0o700", [])
    assert (shown["core"], shown["argv"]) == ([1, 1], False)
    assert lines[0] == "raw [secret TOKEN]"
    assert lines[1] == 'json "[secret TOKEN]"'
    assert "split [secret TOKEN]" in lines
    (long,) = [line for line in lines if line.startswith("long")]
    assert long.startswith(f"long {'.' * 16370} [secret"), "it is redacted before it is cut"
    said = repr(stage.driver.messages)
    assert "canary" not in said
    assert "Y2FuYXJ5" not in said, "nor in base64"
    assert [message["metrics"] for message in stage.driver.all("report")] == [{"[secret TOKEN]": 1.0}]
    assert "canary" not in repr(stage.outcome)


def test_the_fork_server_never_has_a_value(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every later command of its node is a fork of it."""
    folder = tmp_path / "fork-server"
    warm = ForkServer(folder, os.getpid(), ["json"])
    monkeypatch.setattr(module, "job_fork_server", lambda *_: warm)
    command = "import os, sys; print('read', len(os.environ['TOKEN'])); sys.stdin.read()"
    fields: dict[str, Any] = {"variables": {"SEEN": "variable-of-a-job"}, "warm_modules": ("json",)}
    stage.start(command, values=VALUES, secrets=SECRETS, **fields)
    stage.end()
    assert stage.driver.all("started")[0]["is_warm"] is True
    assert [line["text"] for line in stage.driver.all("log")] == [f"read {len(CANARY)}"]
    (server,) = [one for one in psutil.process_iter() if str(folder / "socket") in _words(one)]
    try:
        assert memory_has(server.pid, [os.fsencode(folder)]), "its memory can be read"
        # Nor anything else of a job.
        assert not memory_has(server.pid, [b"canary-4f1d", b"third-canary", b"variable-of-a-job"])
    except PermissionError:
        is_weaker("the kernel does not let tests read the memory of a process")


def _words(process: psutil.Process) -> list[str]:
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()[:12]


def test_a_worker_without_secrets_has_no_folder_for_them(stage: Stage) -> None:
    stage.start("import os; print(os.environ.get('REMORA_SECRETS'))")
    stage.end()
    assert [line["text"] for line in stage.driver.all("log")] == ["None"]
    assert not stage.secrets.exists()


def test_a_refusal_of_a_script_is_redacted_before_it_is_cut(stage: Stage) -> None:
    stage.start(
        "import os\nfrom remora import training\n"
        "said = 'x' * 990 + ' ' + os.environ['TOKEN']\n"
        "training.open_link().send({'type': 'refused', 'message': said})\n"
        "raise SystemExit(2)",
        values={"TOKEN": CANARY},
        secrets={"TOKEN": "TOKEN"},
    )
    refused = stage.end()["start_failed"]
    assert refused.endswith("x [secret T")
    assert "canary" not in repr(stage.driver.messages)


def test_a_node_without_memory_for_files_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(files_module, "_MEMORY", tmp_path / "absent")
    stage.start(values=VALUES, secrets=SECRETS)
    assert "this node has no file system in memory" in stage.end()["environment_failed"]


def test_a_folder_of_another_user_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "_MEMORY", tmp_path)
    (tmp_path / f"remora-secrets-{os.getuid()}").mkdir()
    (tmp_path / f"remora-secrets-{os.getuid()}").chmod(0o777)
    with (
        pytest.raises(EnvironmentFailed, match="no folder of this user alone"),
        files_module.secret_files("w", VALUES),
    ):
        pass


def hold(memory: Path, there: Any) -> None:
    files_module._MEMORY = memory
    with files_module.secret_files("worker", VALUES):
        there.set()
        signal.pause()


def test_the_secrets_of_a_killed_supervisor_are_swept(driver: Driver, stage: Stage) -> None:
    del driver
    context = multiprocessing.get_context("fork")
    there = context.Event()
    process = context.Process(target=hold, args=(stage.secrets.parent, there))
    process.start()
    assert there.wait(20.0)
    sweep_node()
    assert (stage.secrets / "worker" / "TOKEN").read_text() == CANARY, "it lives"
    process.kill()
    process.join()
    assert (stage.secrets / "worker").exists()
    sweep_node()
    assert list(stage.secrets.iterdir()) == []


def test_values_travel_in_chunks_that_ray_passes_in_the_call_itself() -> None:
    values = {f"S{number}": "\u00e4" * 60_000 for number in range(3)}
    chunks = chunks_of(values)
    assert len(chunks) > 3
    assert max(len(chunk) for chunk in chunks) <= CHUNK_BYTES < 100 * 1024
    assert values_of(chunks) == values
    assert (chunks_of({}), values_of(())) == ((), {})


def test_stacks_are_redacted_before_a_command_line_is_cut(stage: Stage) -> None:
    """A script that gives its secret to another program as an argument."""
    supervisor = stage.start(
        "import os, subprocess, sys\n"
        "words = [sys.executable, '-c', 'import time; print(1, flush=True); time.sleep(60)']\n"
        "fill = 'x' * (188 - len(' '.join(words)))\n"
        "subprocess.run([*words, fill, os.environ['TOKEN']])",
        values={"TOKEN": CANARY},
        secrets={"TOKEN": "TOKEN"},
    )
    stage.driver.wait_for("log")
    supervisor.instruct({"type": "dump"})
    text = stage.driver.wait_for("stack")["text"]
    assert "[secret" in text
    assert "canary" not in text
