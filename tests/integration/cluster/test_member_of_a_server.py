"""A machine of a server without the head: its controllers connect through a member, with TLS between all of them.

The machine is a namespace of processes, in which Ray sees no process of the head.
"""

from __future__ import annotations

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
from remora.ports import free_port
from remora.ray_resources import DRIVERS

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(os.getuid() != 0, reason="only root makes a namespace of processes here"),
]

NAMESPACE = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
HEAD, MEMBER = "127.0.84.1", "127.0.84.2"
#: What a service's machine does: it starts its member and then connects as a controller does.
MACHINE = """
import json, pathlib, subprocess, sys, time
from ray._private.services import find_node_ids
from cluster.ray.connection import connect

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
        assert done.returncode == 0, done.stderr[-3000:] + log.read_text()
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
