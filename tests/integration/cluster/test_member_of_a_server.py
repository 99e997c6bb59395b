"""A machine of a server without the head: its controllers connect through a member, with TLS between all of them.

The machine is a namespace of processes, in which Ray sees no process of the head.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.local.certificates import begin
from cluster.local.environment import process_environment
from cluster.local.folders import ClusterFolders
from remora.free_ports import free_port
from remora.ray_resources import DRIVERS
from tests.job_uids import own_uids
from tests.rootless import PROCESSES, as_other_user, home_of_another

pytestmark = [
    pytest.mark.slow,
    pytest.mark.soak,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.getuid() != 0, reason="only root makes a namespace of processes here"),
]

NAMESPACE = ("unshare", *PROCESSES)
HEAD, MEMBER = "127.0.84.1", "127.0.84.2"
#: What a service's machine does: it starts its member and then connects as a controller does.
MACHINE = """
import json, pathlib, subprocess, sys, time
from ray._private.services import find_node_ids
from cluster.local.connection import connect

home, head, address = sys.argv[1:]
assert not find_node_ids(), "another machine's node is seen"
words = ["member", "--home", home, "--head", head, "--address", address]
subprocess.Popen([sys.executable, "-P", "-m", "cluster.head", *words], stdout=sys.stderr)
while not find_node_ids():
    time.sleep(0.1)
connect(pathlib.Path(home), head)
import ray

kept = ray.put(b"x" * 2**20)
on_head = ray.remote(lambda kept: len(kept)).options(num_cpus=0, label_selector={"remora-role": "head"})
print(json.dumps({"nodes": ray.nodes(), "read": ray.get(on_head.remote(kept), timeout=60)}))
"""

#: A pod of a controller: its containers have a group and a list of processes together, and users of their own.
POD = """
import json, os, pathlib, subprocess, sys, time
os.environ["RAY_event_log_reporter_enabled"] = "false"
from ray._private.services import find_node_ids

home, own, head, address = sys.argv[1:]
words = ["member", "--home", own, "--head", head, "--address", address, "--with-group"]
def become(uid):
    os.setgroups([])
    os.setresgid(GROUP, GROUP, GROUP)
    os.setresuid(uid, uid, uid)
member = subprocess.Popen(
    [sys.executable, "-P", "-m", "cluster.head", *words], stdout=sys.stderr, preexec_fn=lambda: become(MEMBER),
    env={name: value for name, value in os.environ.items() if name != "REMORA_DATABASE_URL"}
    | {"RAY_AUTH_TOKEN_PATH": own + "/ray.token", "HOME": own},
)
os.environ["HOME"] = home
become(CONTROLLER)
while not find_node_ids():
    assert member.poll() is None
    time.sleep(0.1)
from cluster.local.connection import connect
connect(pathlib.Path(home), head)
import ray

@ray.remote(num_cpus=0, label_selector={"remora-role": "member"})
def looks(pid, home):
    def found_of(process):
        found = []
        for name in ("environ", "root/etc/passwd", "mem"):
            try:
                open(f"/proc/{process}/{name}", "rb").close()
                found.append(name)
            except OSError:
                pass
        try:
            os.kill(process, 0)
            found.append("a signal")
        except OSError:
            pass
        return found
    try:
        kept = open(f"{home}/ray.token").read()
    except OSError:
        kept = ""
    return os.getuid(), found_of(pid), kept, found_of(os.getpid())

print(json.dumps(ray.get(looks.remote(os.getpid(), home), timeout=60)))
"""


def test_what_a_script_of_ray_runs_on_the_member_of_a_pod_finds_nothing_of_the_controller(
    tmp_path: Path,
) -> None:
    """The manifests give the member's container another user than the controller's."""
    uids = own_uids(2)
    controller, member = uids.first, uids.last
    head_home = ClusterFolders(tmp_path / "head")
    head_home.make()
    begin(head_home, encrypted=False)
    address = f"{HEAD}:{free_port(HEAD)}"
    environment = process_environment(head_home.home)
    log = tmp_path / "head.log"
    with home_of_another() as own, log.open("wb") as output:
        homes = {controller: own / "controller", member: own / "member"}
        own.chmod(0o755)
        for uid, home in homes.items():
            home.mkdir(mode=0o700)
            shutil.copy(head_home.token, home / "ray.token")
            for path in (home, home / "ray.token"):
                os.chown(path, uid, controller)
        head = subprocess.Popen(
            [sys.executable, "-P", "-m", "cluster.head", "head", "--home", head_home.home, "--head", address],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        numbers = f"CONTROLLER, MEMBER, GROUP = {controller}, {member}, {controller}"
        try:
            done = as_other_user(
                own, "-P", "-c", numbers + POD, *map(str, homes.values()), address, MEMBER,
                own_processes=True, is_root=True, timeout_s=200.0, PYTHONPATH=environment["PYTHONPATH"],
            )  # fmt: skip
            assert done.returncode == 0, done.stderr[-9000:] + log.read_text()
            said = json.loads(done.stdout.strip().splitlines()[-1])
            assert said == [member, [], "", ["environ", "root/etc/passwd", "mem", "a signal"]]
        finally:
            os.killpg(head.pid, signal.SIGKILL)
            head.wait()
            head_home.remove_temporary()
            for uid, home in homes.items():
                digest = hashlib.sha256(str(home).encode()).hexdigest()[:8]
                shutil.rmtree(f"/tmp/remora-{uid}-{digest}", ignore_errors=True)


def test_a_controller_connects_from_a_machine_without_the_head(tmp_path: Path) -> None:
    homes = [ClusterFolders(tmp_path / name) for name in ("head", "service")]
    environments = []
    for folders in homes:
        folders.make()
        if folders is homes[0]:
            begin(folders, encrypted=True)
        else:
            folders.tls.mkdir(mode=0o700)
            shutil.copy(homes[0].authority, folders.authority)
            shutil.copy(homes[0].token, folders.token)
        environments.append(process_environment(folders.home))
    address = f"{HEAD}:{free_port(HEAD)}"
    log = tmp_path / "head.log"
    head = subprocess.Popen(
        [sys.executable, "-P", "-m", "cluster.head", "head", "--home", homes[0].home, "--head", address],
        env={**environments[0], "REMORA_DATABASE_URL": "postgresql://remora:word@host/remora"},
        stdout=log.open("wb"),
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        done = subprocess.run(
            [*NAMESPACE, sys.executable, "-P", "-c", MACHINE, str(homes[1].home), address, MEMBER],
            env=environments[1],
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr[-9000:] + log.read_text()
        said = json.loads(done.stdout.strip().splitlines()[-1])
        assert said["read"] == 2**20, "the head has read what the controller owns"
        nodes = {node["Labels"]["remora-role"]: node for node in said["nodes"] if node["Alive"]}
        assert {role: node["NodeManagerAddress"] for role, node in nodes.items()} == {
            "head": HEAD,
            "member": MEMBER,
        }
        # What runs jobs' drivers has nothing of the database in its memory.
        assert b"REMORA_DATABASE_URL" not in Path(f"/proc/{head.pid}/environ").read_bytes()
        assert not {"CPU", "GPU", DRIVERS} & nodes["member"]["Resources"].keys()
    finally:
        os.killpg(head.pid, signal.SIGKILL)
        head.wait()
        for folders in homes:
            folders.remove_temporary()
