"""Connections of jobs' users, in a network namespace of its own: the machine's ruleset is never touched."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from remora.isolation import UidRange
from remora.network_filter import NetworkFilter, NoNetworkRules
from remora.network_rules import Ports, closed_elsewhere, ruleset
from tests.needed import is_missing
from trainers.isolation import network
from trainers.isolation.network import addresses_of

ROOT = Path(__file__).parents[3]
UIDS = UidRange(first=2_000_900_000, last=2_000_900_001)
#: What both scenes are made of: who listens, as which user, and what a user reaches of it.
COMMON = """
import json, os, socket, subprocess, sys
sys.path.insert(0, sys.argv[1])
from remora.isolation import Offer, UidRange
from remora.network_filter import HeldRules, NetworkFilter
from remora.network_rules import Ports

def ip(*words):
    subprocess.run(["ip", *words], check=True)

ip("link", "set", "lo", "up")
job = int(sys.argv[2])
range_ = UidRange(first=job, last=job + 1)

def listen(uid, address, port=0):
    os.seteuid(uid)
    try:
        return socket.create_server(
            (address, port), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=64
        )
    finally:
        os.seteuid(0)

def reach(address, protocol=0):
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM, protocol) as one:
        one.settimeout(20)
        return one.connect_ex(address[:2])

def as_user(uid, what):
    read, write = os.pipe()
    if os.fork() == 0:
        os.setuid(uid)
        os.write(write, json.dumps(what()).encode())
        os._exit(0)
    os.wait()
    return json.loads(os.read(read, 10000))

def reached(uid):
    return as_user(uid, lambda: [name for name, address in addresses.items() if reach(address) == 0])

def tables():
    done = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True)
    return done.stdout.split("\\n")[:-1]
"""
#: Listeners of the node's user, of jobs' and of others, and the cloud's own services: who reaches which?
SCENE = (
    COMMON
    + """
for address in ("169.254.169.254", "168.63.129.16", "10.9.8.7"):
    ip("addr", "add", address + "/32", "dev", "lo")
open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w").write("0")
# Neither the node's user nor a job's: its ports are not those of the platform.
CLOUD = 4242
places = {
    "metadata": listen(CLOUD, "169.254.169.254", 80),
    "wire": listen(CLOUD, "168.63.129.16", 80),
    "names": listen(CLOUD, "168.63.129.16", 53),
    "api": listen(0, "127.0.0.1"),
    "api6": listen(0, "::1"),
    "raylet": listen(0, "0.0.0.0"),
    "worker": listen(job, "10.9.8.7"),
    "worker6": listen(job + 1, "::1"),
}
addresses = {name: one.getsockname() for name, one in places.items()}
before = reached(job)
rules = NetworkFilter(range_)
changes = [rules.update(), rules.update()]
late = places["late"] = listen(0, "127.0.0.1")
addresses["late"] = late.getsockname()
refusal = as_user(job, lambda: reach(addresses["late"]))
multipath = os.path.exists("/proc/sys/net/mptcp") and [
    as_user(job, lambda: reach(addresses[name], 262)) for name in ("worker", "late")
]
subprocess.run(["nft", "flush", "ruleset"], check=True)
changes += [rules.update(), rules.update()]
found = {"before": before, "job": reached(job), "node": reached(0), "changes": changes, "table": tables()}
rules.remove()
rules.remove()
print(json.dumps({**found, "refusal": refusal, "multipath": multipath, "after": reached(job), "left": tables()}))
"""
)
#: The node's user opens ports again and again, and each is tried at once: the rules know nothing of them.
RACE = (
    COMMON
    + """
NetworkFilter(range_).update()
ours, theirs = socket.socketpair()
if os.fork() == 0:
    os.setuid(job)
    while port := int.from_bytes(theirs.recv(2)):
        theirs.send(bytes([reach(("127.0.0.1", port)) == 0]))
    os._exit(0)

def is_reached(uid):
    with listen(uid, "127.0.0.1") as one:
        ours.send(one.getsockname()[1].to_bytes(2))
        return bool(ours.recv(1)[0])

print(json.dumps({uid: sum(is_reached(uid) for _ in range(200)) for uid in (0, job)}))
ours.send(bytes(2))
os.wait()
"""
)
#: A user stands for sockets without an owner, which not every kernel makes on behalf of a command.
UNOWNED = (
    COMMON
    + """
from remora.network_rules import ruleset
STANDS = 4242
ip("addr", "add", "168.63.129.16/32", "dev", "lo")
open("/proc/sys/net/ipv4/ip_unprivileged_port_start", "w").write("0")
text = ruleset(range_, 0).replace("meta skuid != 4294967295", f"meta skuid != {STANDS}")
subprocess.run(["nft", "-f", "-"], input=text, text=True, check=True)
places = {
    "wire": listen(STANDS, "168.63.129.16", 443),
    "api": listen(0, "127.0.0.1"),
    "api6": listen(0, "::1"),
    "worker": listen(job, "127.0.0.1"),
    "worker6": listen(job, "::1"),
}
addresses = {name: one.getsockname() for name, one in places.items()}
print(json.dumps({uid: reached(uid) for uid in (STANDS, 0, STANDS + 1)}))
"""
)
#: Another node, in a network namespace of its own: what is known of it is closed, and its other ports are open.
ELSEWHERE = (
    COMMON
    + """
other = subprocess.Popen(["unshare", "-n", "sleep", "600"])
try:
    while os.stat(f"/proc/{other.pid}/ns/net").st_ino == os.stat("/proc/self/ns/net").st_ino:
        os.sched_yield()
    ip("link", "add", "here", "type", "veth", "peer", "name", "there", "netns", str(other.pid))
    ip("addr", "add", "10.9.8.1/24", "dev", "here")
    ip("link", "set", "here", "up")
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(f"/proc/{other.pid}/ns/net", os.O_RDONLY)
    import ctypes
    libc = ctypes.CDLL(None)
    assert libc.setns(there, 0) == 0
    ip("addr", "add", "10.9.8.2/24", "dev", "there")
    ip("link", "set", "there", "up")
    places = {port: listen(0, "10.9.8.2", port) for port in (6379, 10002, 19999, 20000, 29500)}
    assert libc.setns(own, 0) == 0
    addresses = {port: one.getsockname() for port, one in places.items()}
    rules = NetworkFilter(range_)
    known = [Ports("10.9.8.2", 10001, 19999), Ports("10.9.8.2", 6379, 6379), Ports("10.9.8.2", 15000, 15000)]
    changes = [rules.update(known), rules.update(known[::-1]), rules.update(known[:1])]
    fewer = reached(job)
    rules.update(known)
    print(json.dumps({"changes": changes, "fewer": fewer, "job": reached(job), "node": reached(0)}))
finally:
    other.kill()
    other.wait()
"""
)
#: Services of one machine: two with the same users, one with others, and those that are killed.
SERVICES = (
    COMMON
    + """
os.environ["REMORA_NETWORK_RULES"] = "true"

def service(first):
    return HeldRules(Offer(uids=UidRange(first=first, last=first + 1)))

def killed(first):
    if os.fork() == 0:
        service(first).begin()
        os._exit(0)
    os.wait()

seen = []
killed(job + 10)
seen.append(tables())
one, two, three = service(job), service(job), service(job + 20)
said = one.begin()
seen.append(tables())
two.begin(), three.begin()
seen.append(tables())
for held in (one, three, two):
    assert held.end() == ""
    seen.append(tables())
killed(job)
again = service(job)
again.begin()
seen.append(tables())
again.end()
seen.append(tables())
print(json.dumps({"said": said, "seen": [[int(one.split("_")[2]) - job for one in every] for every in seen]}))
"""
)


@pytest.fixture
def nft() -> None:
    """Leaves the test out where this machine has no nftables; CI has them."""
    if os.geteuid() != 0 or shutil.which("nft") is None or shutil.which("ip") is None:
        is_missing(
            "needs root and the programs `nft` and `ip`, which make test-tools installs, as root on Debian"
        )


needs_nft = pytest.mark.usefixtures("nft")


def play(scene: str) -> Any:
    command = ["unshare", "-n", sys.executable, "-c", scene, str(ROOT), str(UIDS.first)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_nft
def test_a_job_reaches_its_workers_and_neither_the_cloud_nor_the_platform() -> None:
    seen = play(SCENE)
    every = ["metadata", "wire", "names", "api", "api6", "raylet", "worker", "worker6"]
    assert seen["before"] == every
    assert seen["job"] == ["names", "worker", "worker6"]
    assert seen["node"] == [*every, "late"]
    assert seen["refusal"] == errno.ECONNREFUSED, "at once, as by a port at which nothing listens"
    assert seen["multipath"] in (False, [0, errno.ECONNREFUSED]), "by MPTCP, too"
    assert seen["changes"] == [True, False, True, False], "installed when they are new, or gone"
    assert seen["table"] == ["table inet remora_0_2000900000_2000900001"]
    assert (seen["left"], seen["after"]) == ([], [*every, "late"])


@needs_nft
def test_a_port_that_the_platform_opens_is_closed_from_its_first_moment() -> None:
    assert play(RACE) == {"0": 0, str(UIDS.first): 200}


@needs_nft
def test_a_connection_that_has_no_owner_reaches_what_a_job_reaches() -> None:
    every = ["wire", "api", "api6", "worker", "worker6"]
    assert play(UNOWNED) == {"4242": ["worker", "worker6"], "0": every, "4243": every}


@needs_nft
def test_ports_of_other_nodes_are_closed_as_they_are_known() -> None:
    seen = play(ELSEWHERE)
    assert seen["changes"] == [True, False, True]
    assert seen["node"] == [6379, 10002, 19999, 20000, 29500]
    assert (seen["fewer"], seen["job"]) == ([6379, 20000, 29500], [20000, 29500])


@needs_nft
def test_the_last_service_with_these_users_removes_its_table_and_the_next_one_what_a_killed_one_left() -> (
    None
):
    seen = play(SERVICES)
    assert "remora_0_2000900000_2000900001" in seen["said"]
    assert seen["seen"] == [[10], [0], [0, 20], [0, 20], [0], [], [0], []]


def test_rules_name_numbers_and_nothing_else() -> None:
    text = ruleset(UIDS, 1000)
    assert "meta skuid 2000900000-2000900001 jump jobs" in text
    assert "meta skuid != { 0, 1000 } goto allowed" in text
    # What has no owner matches no rule about owners, so it goes on to the next one: a SYN is that of a job.
    unowned = "meta skuid != 4294967295 return\n    tcp flags & (syn | ack) == syn jump jobs"
    assert unowned in text
    assert text.index("jump answers") < text.index(unowned)
    assert "meta skuid != 4294967295 goto noted\n    limit rate over 1000/second" in text
    closed = closed_elsewhere("remora", [Ports("10.0.0.1", 6379, 6379), Ports("fd00::1", 80, 90)])
    assert "10.0.0.1 . 6379-6379" in closed
    assert "fd00::1 . 80-90" in closed
    for wrong in (("10.0.0.1; flush ruleset", 1), ("head", 6379), ("10.0.0.1", 0), ("10.0.0.1", 70_000)):
        with pytest.raises(ValueError, match=r"."):
            closed_elsewhere("remora", [Ports(*wrong, 80)])


def test_ranges_of_ports_that_meet_are_one() -> None:
    others = [Ports("10.0.0.1", *one) for one in ((5, 9), (3, 3), (10, 12), (4, 6), (20, 30), (21, 22))]
    assert "{ 10.0.0.1 . 3-12, 10.0.0.1 . 20-30 }" in closed_elsewhere("remora", others)


def test_names_of_nodes_become_numbers_and_what_has_none_is_left_out() -> None:
    names = [
        ("[::1]", 6379),
        ("fe80::1%lo", 1),
        ("localhost", 7),
        ("no-such-node.invalid", 8),
        ("x\0y", 9),
        ("", 10),
    ]
    places = [Ports(name, port, port) for name, port in [*names, ("127.0.0.1", 7), ("10.0.0.1", 11)]]
    found = addresses_of(places)
    numbers = {("::1", 6379), ("fe80::1", 1), ("127.0.0.1", 7), ("10.0.0.1", 11)}
    assert {Ports(name, port, port) for name, port in numbers} <= set(found)
    assert not [one for one in found if one.first in (8, 9)]
    assert len(found) == len(set(found))
    closed_elsewhere("remora", found)


def test_a_guard_goes_on_after_what_it_did_not_expect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_EVERY_S", 0.0)
    errors: list[Exception] = [ValueError("x is no port"), OSError("no memory"), NoNetworkRules("no nft")]

    class Rules(NetworkFilter):
        def update(self, others: Iterable[Ports] = ()) -> bool:
            if errors:
                raise errors.pop()
            guard.over.set()
            return True

    guard = network._Guard(Rules(UIDS), list)
    guard.run()
    assert errors == []
    assert guard.over.is_set()
