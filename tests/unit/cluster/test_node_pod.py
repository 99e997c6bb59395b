"""How a pod learns which node it is, and what it starts then."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from cluster.node.pod import UNUSABLE, ask, main, start_of_pod
from cluster.provider import InvalidRequest, NodeRequest
from cluster.ray.joining import RAY_SETTINGS
from cluster.ray.membership import MembershipUnknown, RayMembership
from cluster.ray.pod_names import MOST_BYTES, RayPodNames, read

NODE = NodeRequest(
    node_id="node_a", pool="cpu", resources={"CPU": 4.0, "GPU": 1.0}, labels={"remora-zone": "1"}
)
VARIABLES = {
    "REMORA_HEAD": "head:6379",
    "POD_NAME": "pod-1",
    "POD_IP": "10.1.0.7",
    "RAY_AUTH_TOKEN_PATH": "/etc/remora/ray/token",
    "RUNTIME_DIRECTORY": "/run/here",
}


class Store:
    """Ray's internal store, as far as it is called."""

    def __init__(self) -> None:
        self.entries: dict[tuple[bytes, bytes], bytes] = {}

    def internal_kv_put(
        self, key: bytes, value: bytes, overwrite: bool, namespace: bytes, timeout: int
    ) -> None:
        assert overwrite
        assert timeout > 0
        self.entries[namespace, key] = value

    def internal_kv_del(self, key: bytes, by_prefix: bool, namespace: bytes, timeout: int) -> None:
        assert not by_prefix
        assert timeout > 0
        self.entries.pop((namespace, key), None)


def test_what_the_controller_writes_is_what_a_pod_reads() -> None:
    store = Store()
    names = RayPodNames(RayMembership(), lambda: store)
    names.publish({"pod-1": NODE})
    (text,) = store.entries.values()
    assert read(text) == NODE
    names.forget(["pod-1", "pod-2"])
    assert store.entries == {}


def test_nothing_is_written_through_a_connection_that_was_left() -> None:
    membership, store = RayMembership(), Store()
    membership.leave()
    with pytest.raises(MembershipUnknown):
        RayPodNames(membership, lambda: store).publish({"pod-1": NODE})
    assert store.entries == {}


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"node_id": "../x", "pool": "p", "resources": {}}', b" " * (MOST_BYTES + 1)],
)
def test_what_no_controller_wrote_makes_no_node(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read(text)


def test_it_asks_until_the_head_knows() -> None:
    answers = iter([ConnectionError("away\nfor now"), None, NODE])

    def look() -> NodeRequest | None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    class Patient(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            assert timeout is not None
            return False

    assert ask(look, Patient()) == NODE
    stopped = threading.Event()
    stopped.set()
    assert ask(look, stopped) is None


def test_it_joins_with_what_the_head_says() -> None:
    start = start_of_pod(NODE, VARIABLES)
    assert "--address=head:6379" in start.ray
    assert "--node-ip-address=10.1.0.7" in start.ray
    assert {"--num-cpus=4", "--num-gpus=1"} <= set(start.ray)
    (labels,) = [flag for flag in start.ray if flag.startswith("--labels=")]
    assert {"remora-node=node_a", "remora-pool=cpu", "remora-zone=1"} == set(labels[9:].split(","))
    assert start.environment["RAY_AUTH_TOKEN_PATH"] == "/etc/remora/ray/token"
    assert start.environment["REMORA_NODE_ID"] == "node_a"
    assert start.agent[start.agent.index("--ray-pid-file") + 1] == "/run/here/ray.pid"


def test_a_variable_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert main() == 2
    assert "REMORA_HEAD is not set" in caplog.text


def test_what_a_killed_container_left_is_not_taken_for_this_ones_ray(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes of the pod read the file."""

    def refuse(*_: str) -> NodeRequest | None:
        assert not (tmp_path / "ray.pid").exists()
        raise InvalidRequest("it is none")

    for name, value in {**VARIABLES, **RAY_SETTINGS, "RUNTIME_DIRECTORY": str(tmp_path)}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("cluster.ray.pod_names.named_node", refuse)
    (tmp_path / "ray.pid").write_text("1")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert main() == UNUSABLE
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
