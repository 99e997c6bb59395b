"""Connections of jobs' users, in a network namespace of its own: the machine's ruleset is never touched."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from remora.isolation import UidRange
from remora.network_filter import NetworkFilter, NoNetworkRules
from remora.network_rules import listening_ports, ruleset
from trainers.isolation import network
from trainers.isolation.network import addresses_of

ROOT = Path(__file__).parents[3]
UIDS = UidRange(first=2_000_900_000, last=2_000_900_001)
#: Two listeners of the node's user, one of a job's, and the metadata service: who reaches which?
SCENE = """
import json, os, socket, subprocess, sys, threading
sys.path.insert(0, sys.argv[1])
from remora.isolation import UidRange
from remora.network_filter import NetworkFilter, remove

def ip(*words):
    subprocess.run(["ip", *words], check=True)

ip("link", "set", "lo", "up")
for address in ("169.254.169.254", "168.63.129.16", "10.9.8.7"):
    ip("addr", "add", address + "/32", "dev", "lo")
open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w").write("0")
# Neither the node's user nor a job's: its ports are not those of the platform.
CLOUD = 4242
job = int(sys.argv[2])

def listen(uid, address, port=0):
    os.seteuid(uid)
    try:
        return socket.create_server((address, port), backlog=64)
    finally:
        os.seteuid(0)

places = {
    "metadata": listen(CLOUD, "169.254.169.254", 80),
    "wire": listen(CLOUD, "168.63.129.16", 80),
    "names": listen(CLOUD, "168.63.129.16", 53),
    "api": listen(0, "127.0.0.1"),
    "other node": listen(job + 1, "10.9.8.7"),
    "worker": listen(job, "10.9.8.7"),
}
addresses = {name: one.getsockname() for name, one in places.items()}

def reached(uid):
    read, write = os.pipe()
    if os.fork() == 0:
        os.setuid(uid)
        seen = []
        for name, address in addresses.items():
            with socket.socket() as one:
                one.settimeout(5)
                if one.connect_ex(address) == 0:
                    seen.append(name)
        os.write(write, json.dumps(seen).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(read, 10000))

def table():
    return subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True).stdout

before = reached(job)
rules = NetworkFilter(UidRange(first=job, last=job + 1))
changes = [rules.update([addresses["other node"]]), rules.update([addresses["other node"]])]
late = places["late"] = listen(0, "127.0.0.1")
addresses["late"] = late.getsockname()
changes.append(rules.update([addresses["other node"]]))
subprocess.run(["nft", "flush", "ruleset"], check=True)
restored = [rules.update([addresses["other node"]]) for _ in range(60)]
changes.append(restored == [False] * 59 + [True])
found = {"before": before, "job": reached(job), "node": reached(0), "changes": changes, "table": table()}
remove()
remove()
print(json.dumps({**found, "after": reached(job), "left": table()}))
"""


PROGRAMS = [shutil.which(one, path="/usr/sbin:/sbin:/usr/bin:/bin") for one in ("nft", "ip", "unshare")]


@pytest.mark.skipif(os.geteuid() != 0 or not all(PROGRAMS), reason="needs root, nft, ip and unshare")
def test_a_job_reaches_its_workers_and_neither_the_cloud_nor_the_platform() -> None:
    command = ["unshare", "-n", sys.executable, "-c", SCENE, str(ROOT), str(UIDS.first)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    every = ["metadata", "wire", "names", "api", "other node", "worker"]
    assert seen["before"] == every
    assert seen["job"] == ["names", "worker"]
    assert seen["node"] == [*every, "late"]
    assert seen["changes"] == [True, False, True, True], "installed when something has changed, or is gone"
    assert (seen["table"], seen["left"], seen["after"]) == ("table inet remora\n", "", [*every, "late"])


def test_ports_of_a_user_are_those_at_which_its_sockets_listen() -> None:
    table = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1C61 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 0 100 0 0 10 0
   1: 0100007F:1C62 0100007F:0050 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 100 0 0 10 0
   2: 0100007F:1C63 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 3 1 0 100 0 0 10 0
   3: broken
"""
    assert listening_ports(table, 0) == {0x1C61}
    assert listening_ports(table, 1000) == {0x1C63}


def test_rules_name_numbers_and_nothing_else() -> None:
    text = ruleset(UIDS, [22, 8265], [("10.0.0.1", 6379), ("fd00::1", 80)])
    assert "meta skuid 2000900000-2000900001 jump jobs" in text
    assert "10.0.0.1 . 6379" in text
    assert "fd00::1 . 80" in text
    for wrong in (("10.0.0.1; flush ruleset", 1), ("head", 6379), ("10.0.0.1", 0), ("10.0.0.1", 70_000)):
        with pytest.raises(ValueError, match=r"."):
            ruleset(UIDS, [], [wrong])


def test_names_of_nodes_become_numbers_and_what_has_none_is_left_out() -> None:
    places = [
        ("[::1]", 6379),
        ("fe80::1%lo", 1),
        ("localhost", 7),
        ("no-such-node.invalid", 8),
        ("x\0y", 9),
        ("", 10),
    ]
    found = addresses_of([*places, ("127.0.0.1", 7), ("10.0.0.1", 11)])
    assert {("::1", 6379), ("fe80::1", 1), ("127.0.0.1", 7), ("10.0.0.1", 11)} <= set(found)
    assert not [port for _, port in found if port in (8, 9)]
    assert len(found) == len(set(found))
    ruleset(UIDS, [], found)


def test_a_guard_goes_on_after_what_it_did_not_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_EVERY_S", 0.0)
    errors: list[Exception] = [ValueError("x is no port"), OSError("no memory"), NoNetworkRules("no nft")]

    class Rules(NetworkFilter):
        def update(self, others: Iterable[tuple[str, int]] = ()) -> bool:
            if errors:
                raise errors.pop()
            guard.over.set()
            return True

    guard = network._Guard(Rules(UIDS), list)
    guard.run()
    assert errors == []
    assert guard.over.is_set()
