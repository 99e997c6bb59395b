"""An emulated machine reads its start-up data as cloud-init does, and refuses what could not boot."""

from __future__ import annotations

import base64
import json

import pytest

from cluster.azure.emulator.machines import StartUpFailed, read_node_file
from tests.unit.cluster.test_azure_body import body

NODE = {"node": "node_a", "pool": "p", "head": "10.0.0.4:6379", "resources": {}, "labels": {}}


def document(
    node: object = NODE, path: str = "/etc/remora/node.json", command: str = "remora-node.service"
) -> str:
    files = [{"path": path, "content": json.dumps(node)}]
    text = {"write_files": files, "runcmd": [["systemctl", "enable", "--now", command]]}
    return encoded("#cloud-config\n" + json.dumps(text))


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_what_the_provider_writes_is_what_the_machine_reads() -> None:
    node = read_node_file(body()["properties"]["osProfile"]["customData"])
    assert (node["node"], node["head"], node["resources"]) == (
        "node_01J",
        "10.1.0.4:6379",
        {"CPU": 24.0, "GPU": 1.0},
    )


@pytest.mark.parametrize(
    ("custom_data", "said"),
    [
        ("", "cannot be read"),
        ("not base64!", "cannot be read"),
        (encoded("#!/bin/sh\n"), "cannot be read"),
        (encoded(base64.b64decode(document()).decode().removeprefix("#cloud-config\n")), "not a cloud-init"),
        (document(path="/etc/other"), "cannot be read"),
        (document(command="nothing"), "does not start"),
        (document(node={"node": "node_a"}), "lacks head, labels, pool, resources"),
    ],
    ids=["nothing", "no base64", "a script", "no first line", "no file", "no service", "half a file"],
)
def test_what_could_not_boot_is_refused_in_a_sentence(custom_data: str, said: str) -> None:
    with pytest.raises(StartUpFailed, match=said):
        read_node_file(custom_data)
