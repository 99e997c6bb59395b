"""A child sees what torchrun would show it, nothing of ours that is a secret, and its user's variables."""

from __future__ import annotations

import pytest

from trainers.supervisor.child_environment import child_environment
from trainers.worker_identity import WorkerIdentity

IDENTITY = WorkerIdentity(
    job_id="job_1", attempt_id="att_1", attempt=2, generation=3, rank=5, world_size=8, local_rank=1,
    local_world_size=2, node_rank=2, num_nodes=4, master_addr="127.70.0.2", master_port=29500,
)  # fmt: skip


def environment(
    inherited: dict[str, str] | None = None,
    variables: dict[str, str] | None = None,
    cpus: float = 2.0,
    traceparent: str | None = None,
) -> dict[str, str]:
    return child_environment(
        inherited or {},
        variables or {},
        IDENTITY,
        cpus=cpus,
        interface="lo",
        path_folders=("/node/python-5/bin", "/opt/env/bin"),
        traceparent=traceparent,
    )


def test_torchruns_variables_are_there() -> None:
    seen = environment()
    wanted = {
        "RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "2",
        "GROUP_RANK": "2", "GROUP_WORLD_SIZE": "4", "ROLE_RANK": "5", "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "127.70.0.2", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": "att_1",
        "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_USE_AGENT_STORE": "False",
        "REMORA_JOB_ID": "job_1", "REMORA_ATTEMPT": "2", "REMORA_GENERATION": "3",
        "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    assert wanted.items() <= seen.items()


@pytest.mark.parametrize(
    "name",
    [
        "RAY_AUTH_TOKEN",
        "RAY_ADDRESS",
        "REMORA_HOME",
        "PYTHONPATH",
        "REMORA_DATABASE_URL",
        "AZURE_STORAGE_CONNECTION_STRING",
    ],
)
def test_what_is_ours_stays_hidden(name: str) -> None:
    assert name not in environment({name: "secret", "HOME": "/root"})
    assert environment({name: "secret", "HOME": "/root"})["HOME"] == "/root"


@pytest.mark.parametrize("mark", ["REMORA_MACHINE", "REMORA_NODE_ID"])
def test_the_marks_by_which_a_dead_machine_is_swept_go_on(mark: str) -> None:
    assert environment({mark: "node_1"})[mark] == "node_1"


def test_users_variables_win_over_the_machines_but_never_over_ranks() -> None:
    seen = environment(
        {"LANG": "C"}, {"LANG": "de", "OMP_NUM_THREADS": "7", "RANK": "0", "REMORA_JOB_ID": "x", "RAY_X": "1"}
    )
    assert (seen["LANG"], seen["OMP_NUM_THREADS"], seen["RAY_X"]) == ("de", "7", "1")
    assert (seen["RANK"], seen["REMORA_JOB_ID"]) == ("5", "job_1")


@pytest.mark.parametrize(("cpus", "threads"), [(0.5, "1"), (1.0, "1"), (6.0, "6")])
def test_threads_follow_the_cpus(cpus: float, threads: str) -> None:
    assert environment({"OMP_NUM_THREADS": "64"}, cpus=cpus)["OMP_NUM_THREADS"] == threads


def test_python_means_the_workers_interpreter() -> None:
    assert environment({"PATH": "/usr/bin"})["PATH"] == "/node/python-5/bin:/opt/env/bin:/usr/bin"
    assert environment()["PATH"].startswith("/node/python-5/bin:/opt/env/bin:/")
    assert environment({"PYTHONUNBUFFERED": "0"})["PYTHONUNBUFFERED"] == "0"


def test_pytorch_keeps_the_newest_collectives_unless_the_job_or_its_image_says_how_many() -> None:
    recorder, old = "TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"
    assert environment()[recorder] == "256"
    assert environment(variables={recorder: "0"})[recorder] == "0"
    assert environment({recorder: "0"})[recorder] == "0"
    for seen in (environment({old: "7"}), environment(variables={old: "7"})):
        assert (seen[old], seen.get(recorder)) == ("7", None), "the new name would count"


def test_the_trace_is_the_jobs_and_not_that_of_what_started_the_node() -> None:
    of_node = {"TRACEPARENT": "00-of-the-node", "TRACESTATE": "of=the-node"}
    assert "TRACEPARENT" not in environment(of_node)
    seen = environment(of_node, traceparent="00-of-the-attempt")
    assert (seen["TRACEPARENT"], seen.get("TRACESTATE")) == ("00-of-the-attempt", None)
    chosen = environment(variables={"TRACEPARENT": "00-of-the-owner"}, traceparent="00-of-the-attempt")
    assert chosen["TRACEPARENT"] == "00-of-the-owner"
