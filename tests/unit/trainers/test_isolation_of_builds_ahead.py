"""A build ahead keeps code of the job apart from the node as the job's attempt does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from remora.isolation import Isolation, Offer
from remora.machine_isolation import offered
from tests.kept_apart import decide_or_skip
from trainers import builds_ahead
from trainers.builds_ahead import build_ahead
from trainers.environments import build
from trainers.environments.request import EnvironmentRequest
from trainers.isolation import confined
from trainers.plan import BuildAhead


@pytest.fixture(autouse=True)
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("REMORA_WORK_DIR", str(tmp_path / "work"))
    monkeypatch.setattr(builds_ahead, "_NICENESS", os.getpriority(os.PRIO_PROCESS, 0))


def asked(tmp_path: Path, isolation: Isolation) -> BuildAhead:
    request = EnvironmentRequest(setup='echo "uid $(id -u)"; false')
    return BuildAhead("job_waits", request, None, str(tmp_path), (), isolation)


def test_its_commands_run_as_they_do_in_the_attempt(tmp_path: Path) -> None:
    assert f"uid {os.getuid()}" in str(build_ahead(asked(tmp_path, "none")))
    uids = offered().uids
    if uids is not None:
        uid = int(str(build_ahead(asked(tmp_path, "users"))).rpartition("uid ")[2])
        assert uids.first <= uid <= uids.last


def test_a_build_sees_no_process_of_the_node_where_it_has_namespaces(tmp_path: Path) -> None:
    decide_or_skip("namespaces")
    request = EnvironmentRequest(setup="echo sees $(ls /proc | grep -c '^[0-9][0-9]*$'); false")
    said = str(build_ahead(BuildAhead("job_waits", request, None, str(tmp_path), (), "namespaces")))
    # The first one of its namespace, bash, a fork of it, ls and grep.
    assert int(said.rpartition("sees ")[2].split()[0]) <= 5, said


def test_where_the_node_cannot_keep_them_apart_nothing_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (build, confined):
        monkeypatch.setattr(module, "offered", lambda _: Offer(uids=None, why_not="it may not"))
    said = str(build_ahead(asked(tmp_path, "users")))
    assert "isolation is users, and it may not" in said
    assert "uid" not in said
    one, other = asked(tmp_path, "users"), asked(tmp_path, "none")
    assert one.key != other.key
