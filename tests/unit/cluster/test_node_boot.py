"""A node reads its file and starts from it what it has to, without secrets; its tries say how long it waits for one."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import SimpleNamespace

import pytest
from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceRequestError,
    ServiceResponseError,
)
from azure.identity import CredentialUnavailableError

from cluster.azure.body import NodeFile, authority_name, secret_name
from cluster.local.environment import ray_environment
from cluster.node.boot import NodeFileUnusable, NodeRuntime, given_address, parse, start_of
from cluster.node.vault import asked_s, complaint, wait_s
from cluster.provider import InvalidRequest
from cluster.ray.certificates import TLS_VARIABLES
from cluster.ray.joining import RAY_SETTINGS, token_environment

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


RUNTIME = NodeRuntime(
    python="/opt/remora/venv/bin/python",
    run=PurePosixPath("/run/remora"),
    metadata_url="http://169.254.169.254/metadata",
    ray_flags=("--temp-dir=/mnt/ray",),
)


def node(**changed: object) -> NodeFile:
    return parse(json.dumps({**NODE, **changed}))


def test_ray_joins_as_the_node_with_what_its_file_says_and_the_flags_of_its_machine() -> None:
    ray = start_of(node(node=None), "node_b", RUNTIME).ray
    assert ray == [
        *("/opt/remora/venv/bin/python", "-P", "-u", "-m", "cluster.ray.start", "start", "--block"),
        *("--disable-usage-stats", "--temp-dir=/mnt/ray", "--address=10.1.0.4:6379", "--num-cpus=24"),
        *("--num-gpus=1", "--resources={}", "--labels=tier=x,remora-node=node_b,remora-pool=gpu"),
    ]


def test_the_agent_knows_its_node_its_metadata_service_and_whom_to_end() -> None:
    agent = start_of(node(), "node_a", RUNTIME).agent
    assert agent == [
        *("/opt/remora/venv/bin/python", "-P", "-m", "cluster.node.agent", "--head", "10.1.0.4:6379"),
        *("--node-id", "node_a", "--metadata-url", "http://169.254.169.254/metadata"),
        *("--ray-pid-file", "/run/remora/ray.pid", "--gpus", "1"),
    ]


@pytest.mark.parametrize(
    ("resources", "gpus"), [({"CPU": 4, "GPU": 8}, "8"), ({"CPU": 4, "GPU": 0}, "0"), ({"CPU": 4}, "0")]
)
def test_the_agent_looks_for_the_gpus_of_the_file(resources: dict[str, float], gpus: str) -> None:
    agent = start_of(node(resources=resources), "node_a", RUNTIME).agent
    assert agent[agent.index("--gpus") + 1] == gpus


def test_a_machine_may_know_better_how_many_gpus_are_to_be_looked_for() -> None:
    agent = start_of(node(), "node_a", replace(RUNTIME, gpus=0)).agent
    assert agent[agent.index("--gpus") + 1] == "0"


def test_both_learn_where_the_secret_is_and_not_what_it_is() -> None:
    environment = start_of(node(), "node_a", RUNTIME).environment
    assert environment["RAY_AUTH_MODE"] == "token"
    assert environment["RAY_AUTH_TOKEN_PATH"] == "/run/remora/ray.token"
    assert "RAY_AUTH_TOKEN" not in environment
    assert environment["REMORA_NODE_ID"] == "node_a"


def test_ray_has_the_settings_that_it_has_everywhere(tmp_path: Path) -> None:
    """A node of Azure, a head and a node of this machine call each other dead after the same seconds."""
    of_node = start_of(node(), "node_a", RUNTIME).environment
    of_home = ray_environment(tmp_path / "home")
    for environment in (of_node, of_home):
        rest = environment.keys() - token_environment("").keys()
        assert {name: environment[name] for name in rest if name.startswith("RAY_")} == RAY_SETTINGS
    health = {name: value for name, value in RAY_SETTINGS.items() if name.startswith("RAY_health_check")}
    assert health == {
        "RAY_health_check_initial_delay_ms": "1000",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "3",
    }


def test_what_ray_would_refuse_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="is not one that Ray accepts"):
        start_of(node(labels={"a b": "c"}), "node_a", RUNTIME)


def test_ray_gets_certificates_where_the_file_says_so() -> None:
    runtime = NodeRuntime(python="python", run=PurePosixPath("/run/remora"), metadata_url="http://m")
    plain = start_of(parse(json.dumps(NODE)), "node_a", runtime).environment
    assert not set(TLS_VARIABLES) & plain.keys()
    environment = start_of(parse(json.dumps({**NODE, "tls": True})), "node_a", runtime).environment
    assert environment["RAY_USE_TLS"] == "1"
    assert environment["RAY_TLS_SERVER_KEY"] == "/run/remora/tls/own.pem"


def test_an_image_may_give_its_machine_an_address() -> None:
    assert given_address(["--node-ip-address=10.1.0.9", "--temp-dir=/mnt/ray"]) == "10.1.0.9"
    assert given_address(["--temp-dir=/mnt/ray"]) is None


def test_two_clusters_may_share_a_vault() -> None:
    assert len({authority_name("a"), authority_name("b"), secret_name("a")}) == 3
    assert secret_name("a") != secret_name("b")


def test_waits_grow_and_stay_bearable() -> None:
    assert [wait_s(tries) for tries in (1, 2, 3, 4, 5, 6, 7, 5000)] == [1, 2, 4, 8, 16, 30, 30, 30]


def test_a_vault_may_ask_for_a_longer_pause_and_for_no_shorter_one() -> None:
    assert wait_s(1, 20.0) == 20.0
    assert wait_s(4, 2.0) == 8.0
    assert wait_s(1, 86_400.0) == 120.0


def answered(status: int, **headers: str) -> HttpResponseError:
    response = SimpleNamespace(status_code=status, reason="x", headers=headers, text=lambda: "THE BODY")
    kind = {404: ResourceNotFoundError, 401: ClientAuthenticationError}.get(status, HttpResponseError)
    return kind(message="THE BODY", response=response)


@pytest.mark.parametrize(("reported", "seconds"), [("7", 7.0), ("", 0.0), ("soon", 0.0), ("-3", 0.0)])
def test_only_seconds_are_a_pause_that_is_asked_for(reported: str, seconds: float) -> None:
    assert asked_s(answered(429, **{"Retry-After": reported})) == seconds
    assert asked_s(ServiceRequestError("away")) == 0.0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (answered(404), "the vault V has no secret S: put it there as docs/azure-first-run.md says"),
        (answered(403), "Key Vault Secrets User"),
        (answered(401), "does not accept the token"),
        (answered(429), "asked too often"),
        (answered(500), "the vault V answered 500"),
        (ServiceRequestError("no route\nto host"), "the vault V does not answer: no route"),
        (ServiceResponseError("it broke off"), "the vault V does not answer: it broke off"),
        (CredentialUnavailableError(message="none"), "this machine's identity gets no token: none"),
        (AzureError("strange"), "the secret cannot be had: strange"),
    ],
)
def test_every_refusal_is_one_sentence_without_the_body_of_the_answer(error: AzureError, said: str) -> None:
    sentence = complaint(error, "V", "S")
    assert said in sentence
    assert "\n" not in sentence
    assert "THE BODY" not in sentence
