"""What a machine is told about itself is believed only when a node can be made of it."""

from __future__ import annotations

import json

import pytest

from cluster.node.file import NodeFileUnusable, parse

NODE = {
    "cluster": "remora",
    "node": "node_a",
    "pool": "gpu",
    "head": "10.1.0.4:6379",
    "resources": {"CPU": 24, "GPU": 1.0},
    "labels": {"tier": "x"},
    "vault": "https://remora.vault.azure.net",
    "identity_client_id": None,
}


def test_a_whole_file_is_read() -> None:
    node = parse(json.dumps(NODE))
    assert (node.node, node.head, node.resources["CPU"]) == ("node_a", "10.1.0.4:6379", 24.0)


def test_a_machine_of_a_scale_set_has_no_name_yet() -> None:
    assert parse(json.dumps({**NODE, "node": None})).node is None


def test_what_a_newer_controller_says_besides_is_passed_over() -> None:
    assert parse(json.dumps({**NODE, "colour": "blue"})) == parse(json.dumps(NODE))


@pytest.mark.parametrize("name", sorted(NODE))
def test_what_is_missing_is_named(name: str) -> None:
    with pytest.raises(NodeFileUnusable, match=f"^it lacks {name}$"):
        parse(json.dumps({key: value for key, value in NODE.items() if key != name}))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"vault": None}, "names no vault"),
        ({"vault": ""}, "names no vault"),
        ({"head": "10.1.0.4"}, "not HOST:PORT"),
        ({"head": ":6379"}, "not HOST:PORT"),
        ({"resources": {"CPU": "many"}}, "resources.CPU: Input should be a valid number"),
        ({"resources": {"CPU": "4"}}, "resources.CPU: Input should be a valid number"),
        ({"labels": ["x"]}, "labels: "),
        ({"pool": 7}, "pool: "),
    ],
)
def test_what_is_wrong_is_named(changed: dict[str, object], said: str) -> None:
    with pytest.raises(NodeFileUnusable, match=said):
        parse(json.dumps({**NODE, **changed}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "#cloud-config"])
def test_what_is_no_such_document_is_one_sentence(text: str) -> None:
    with pytest.raises(NodeFileUnusable) as refused:
        parse(text)
    assert "\n" not in str(refused.value)
