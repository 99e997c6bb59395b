"""How a home remembers the Ray cluster that it is part of: Ray's own variables, and no secret in the open."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from cluster.local import joined
from cluster.local.environment import process_environment, ray_environment
from cluster.local.folders import ClusterFolders
from cluster.provider import ProviderError

SECRET = "canary-0123456789abcdef"  # of no cluster


@pytest.fixture
def folders(tmp_path: Path) -> ClusterFolders:
    return ClusterFolders(tmp_path / "home")


def test_a_cluster_without_a_secret_is_joined_without_one(folders: ClusterFolders, tmp_path: Path) -> None:
    joined.write(folders, "10.0.0.4:6379", {}, tmp_path)
    known = joined.read(folders)
    assert known is not None
    assert known.address == "10.0.0.4:6379"
    environment = ray_environment(folders.home)
    assert environment["RAY_AUTH_MODE"] == "disabled"
    assert "RAY_AUTH_TOKEN_PATH" not in environment
    assert environment["RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL"] == "minor"
    assert not folders.token.exists(), "no secret of a cluster of its own is made"


def test_a_secret_in_a_variable_is_kept_in_a_file_of_its_owner_and_nowhere_else(
    folders: ClusterFolders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", SECRET)
    joined.write(folders, "10.0.0.4:6379", {"RAY_AUTH_TOKEN": SECRET, "RAY_AUTH_MODE": "token"}, tmp_path)
    assert folders.joined_token.read_text() == SECRET
    for path in (folders.joined, folders.joined_token):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    environment = process_environment(folders.home)
    assert environment["RAY_AUTH_TOKEN_PATH"] == str(folders.joined_token)
    assert SECRET not in "".join(environment.values()) + folders.joined.read_text()
    joined.forget(folders)
    joined.forget(folders)
    assert not folders.joined_token.exists()
    assert joined.read(folders) is None
    assert ray_environment(folders.home)["RAY_AUTH_TOKEN_PATH"] == str(folders.token)


def test_a_secret_in_a_file_stays_there_and_the_usual_place_is_rays_own(
    folders: ClusterFolders, tmp_path: Path
) -> None:
    named, usual = tmp_path / "named", tmp_path / ".ray/auth_token"
    usual.parent.mkdir()
    for path in (named, usual):
        path.write_text(SECRET)
    given = {"RAY_AUTH_TOKEN_PATH": str(named)}
    for environment, path in (({}, usual), (given, named), ({"RAY_AUTH_MODE": "TOKEN"}, usual)):
        known = joined.write(folders, "h:1", environment, tmp_path)
        assert known.variables["RAY_AUTH_TOKEN_PATH"] == str(path)
    known = joined.write(folders, "h:1", {**given, "RAY_AUTH_MODE": "disabled"}, tmp_path)
    assert "RAY_AUTH_TOKEN_PATH" not in known.variables


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"RAY_AUTH_MODE": "k8s"}, "write token or disabled"),
        ({"RAY_AUTH_MODE": "token"}, "RAY_AUTH_TOKEN_PATH"),
        ({"RAY_AUTH_TOKEN_PATH": "/nowhere/token"}, "there is no /nowhere/token"),
        ({"RAY_AUTH_TOKEN": "x" * 5000}, "no secret of Ray"),
    ],
)
def test_what_leads_to_no_secret_is_refused(
    folders: ClusterFolders, tmp_path: Path, environment: dict[str, str], said: str
) -> None:
    with pytest.raises(ProviderError, match=said):
        joined.write(folders, "h:1", environment, tmp_path)
    assert joined.read(folders) is None


def test_certificates_are_passed_on_as_they_were_given(folders: ClusterFolders, tmp_path: Path) -> None:
    given = {
        "RAY_USE_TLS": "1",
        "RAY_TLS_CA_CERT": "/etc/ray/ca.crt",
        "RAY_TLS_SERVER_CERT": "/etc/ray/tls.crt",
        "RAY_TLS_SERVER_KEY": "/etc/ray/tls.key",
    }
    joined.write(folders, "h:1", {**given, "OTHER": "x"}, tmp_path)
    assert given.items() <= process_environment(folders.home).items()


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"address": "h:1", "variables": 3}'])
def test_a_damaged_file_is_reported_with_what_to_do(folders: ClusterFolders, content: str) -> None:
    folders.home.mkdir()
    folders.joined.write_text(content)
    with pytest.raises(ProviderError, match="remove it, and start with --ray-address again"):
        joined.read(folders)
