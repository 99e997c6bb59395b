"""deploy/azure/machine/install.py on this machine, below a folder: with the emulator's identity, vault and storage."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import stat
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster.azure.emulator.faults import EmulatorFault, FaultPoint
from service.installation.alone import alone
from service.installation.commands import WENT_BACK
from service.installation.releases import name_of
from tests.architecture.repository import ROOT
from tests.contracts.deploy.subscription import Subscription
from tests.wheels import wheel

INSTALLER = ROOT / "deploy/azure/machine/install.py"
SERVICE = "remora-remora-service"
#: What the release's `remora-server` is here: it writes down what it was called with.
SERVER = """\
import os, sys
def main():
    with open(os.environ["CALLS"], "a") as file:
        file.write(" ".join(sys.argv[1:]) + "\\n")
"""


#: Of a release that does not work: it ends as `remora-server` does that has put the one before in force again.
GOES_BACK = (
    SERVER
    + f"""\
    print("api-1 runs the release before")
    print("remora-server: api-1 does not work; the one before is in force again", file=sys.stderr)
    return {WENT_BACK}
"""
)


def release(folder: Path, version: str, has_server: bool = True, server: str = SERVER) -> Path:
    """A wheel of Remora without anything in it but a `remora-server`."""
    name = wheel(folder, "remora", version)
    if has_server:
        info = f"remora-{version}.dist-info"
        with zipfile.ZipFile(folder / name, "a") as archive:
            archive.writestr("calls.py", server)
            archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\nremora-server = calls:main\n")
    return folder / name


#: What apt-get is here: it writes down what it was called with, and brings the program that is asked for.
APT_GET = """\
#!/bin/sh
echo "$@" >>{folder}/called
case "$*" in *postgresql-client) : >{folder}/pg_dump; /bin/chmod 755 {folder}/pg_dump ;; esac
"""


class Machine:
    """A machine of the deployment whose files lie below a folder."""

    def __init__(self, azure: Subscription, folder: Path) -> None:
        self.azure = azure
        self.root = folder / "root"
        self.calls = folder / "calls"
        self._document = folder / "document.json"
        #: All programs that are found on it by their names.
        self.programs = folder / "programs"
        self.programs.mkdir()
        apt_get = self.programs / "apt-get"
        apt_get.write_text(APT_GET.format(folder=self.programs))
        apt_get.chmod(0o755)

    def apply(self, user: str = "") -> tuple[int, str]:
        """What the timer calls each minute: exit code and what the journal has of it."""
        self._document.write_text(json.dumps(self.azure.machine(SERVICE)))
        user = user or pwd.getpwuid(os.getuid()).pw_name
        words = [str(INSTALLER), str(self._document), "--root", str(self.root), "--user", user]
        done = subprocess.run(
            [sys.executable, *words, "--metadata", self.azure.server.url],
            env={**os.environ, "CALLS": str(self.calls), "PIP_NO_INDEX": "1", "PATH": str(self.programs)},
            capture_output=True,
            text=True,
            # As on the machine, whose start-up data sets it for what it fetches.
            umask=0o077,
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    def read(self, path: str) -> str:
        return (self.root / path.lstrip("/")).read_text()

    def installed(self) -> list[str]:
        """What apt-get was called with."""
        called = self.programs / "called"
        return called.read_text().splitlines() if called.exists() else []

    def mode(self, path: str) -> str:
        return stat.filemode((self.root / path.lstrip("/")).stat().st_mode)


def of_everyone(path: Path) -> bool:
    """Whether each user can read a file, or run or enter it where its owner can."""
    mode = path.stat().st_mode
    return bool(mode & stat.S_IROTH) and (not mode & stat.S_IXUSR or bool(mode & stat.S_IXOTH))


@pytest.fixture
def machine(azure: Subscription, tmp_path: Path) -> Iterator[Machine]:
    return Machine(azure, tmp_path)


@pytest.mark.soak
@pytest.mark.slow
def test_a_machine_becomes_what_its_document_says_and_follows_releases(
    azure: Subscription, machine: Machine, tmp_path: Path
) -> None:
    azure.up("team")
    code, said = machine.apply()
    assert (code, "releases/current of the storage" in said) == (3, True)

    first = release(tmp_path, "0.1.0")
    azure.up("team", "--wheel", str(first))
    assert machine.apply() == (0, f"remora: {name_of(first)} runs as service\n")
    user = pwd.getpwuid(os.getuid()).pw_name
    assert machine.calls.read_text() == f"install --role service --user {user} --apis 2 --controllers 2\n"
    # Nothing new: nothing is called.
    assert machine.apply() == (0, "")

    second = release(tmp_path, "0.2.0")
    azure.up("team", "--wheel", str(second))
    assert machine.apply() == (0, f"remora: {name_of(second)} runs as service\n")
    assert machine.calls.read_text() == f"install --role service --user {user} --apis 2 --controllers 2\n" * 2

    password = azure.resources.secret("remora-remora-postgres")
    assert f":{password}@" in machine.read("/etc/remora/database.env")
    for path in ("/etc/remora/database.env", "/etc/remora/storage.json"):
        assert machine.mode(path) == "-rw-------"
    for name in ("ray.token", "postgres.password", "tls.pem"):
        assert machine.mode(f"/var/lib/remora/{name}") == "-rw-------"
    assert machine.read("/var/lib/remora/tls.pem") == azure.resources.secret("remora-remora-tls")
    assert machine.mode("/etc/remora/service.env") == "-rw-r--r--"
    # The user of the processes reads and runs all of a release, and what leads to it.
    of_all = ["/etc", "/etc/remora", "/opt", "/opt/remora", "/opt/remora/releases"]
    assert {path: machine.mode(path) for path in of_all} == dict.fromkeys(of_all, "drwxr-xr-x")
    release_folder = machine.root / "opt/remora/releases" / name_of(second)
    assert [path for path in (release_folder, *release_folder.rglob("*")) if not of_everyone(path)] == []
    assert machine.mode("/var/lib/remora") == machine.mode("/var/lib/remora/ray-tls") == "drwx------"
    assert machine.read("/var/lib/remora/ray.token") == azure.resources.secret("remora-remora-ray-token")


@pytest.mark.soak
def test_what_is_cut_off_is_done_again_as_a_whole(
    azure: Subscription, machine: Machine, tmp_path: Path
) -> None:
    file = release(tmp_path, "0.1.0")
    azure.up("trial", "--wheel", str(file))
    folder = machine.root / "opt/remora/releases" / name_of(file)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin/rest").write_text("of an installation that was cut off")
    (machine.root / "etc/remora").mkdir(parents=True)
    (machine.root / "etc/remora/.azure.json.new").write_text("half")
    assert machine.apply()[0] == 0
    assert not (folder / "bin/rest").exists()
    assert json.loads(machine.read("/etc/remora/azure.json"))["cluster"] == "remora"
    assert not list((machine.root / "etc/remora").glob(".*"))


@pytest.mark.soak
def test_a_release_without_a_server_is_named(azure: Subscription, machine: Machine, tmp_path: Path) -> None:
    file = release(tmp_path, "0.1.0", has_server=False)
    azure.up("trial", "--wheel", str(file))
    code, said = machine.apply()
    assert code == 3
    assert f"{name_of(file)} has no remora-server" in said


def test_no_release_is_installed_beside_a_command_that_removes_releases(
    azure: Subscription, machine: Machine, tmp_path: Path
) -> None:
    azure.up("trial", "--wheel", str(release(tmp_path, "0.1.0")))
    with alone(machine.root / "opt/remora"):
        code, said = machine.apply()
    assert (code, "a command of remora-server runs on this machine" in said) == (3, True)
    assert list((machine.root / "opt/remora/releases").iterdir()) == []


@pytest.mark.soak
def test_another_build_of_the_same_version_is_installed(
    azure: Subscription, machine: Machine, tmp_path: Path
) -> None:
    file = release(tmp_path, "0.1.0")
    names = [name_of(file)]
    azure.up("trial", "--wheel", str(file))
    assert machine.apply() == (0, f"remora: {names[0]} runs as both\n")
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("another.py", "")
    names.append(name_of(file))
    azure.up("trial", "--wheel", str(file))
    assert machine.apply() == (0, f"remora: {names[1]} runs as both\n")
    assert names[0] != names[1]
    # A wheel that is just being replaced is not taken for the one that is named.
    with zipfile.ZipFile(file, "a") as archive:
        archive.writestr("a_third.py", "")
    (account,) = (one["name"] for one in azure.resources if one["type"].endswith("/storageAccounts"))
    azure.server.deployer.blobs[f"{account}/releases/{file.name}"] = file.read_bytes()
    assert machine.apply() == (0, "")
    shutil.rmtree(machine.root / "opt/remora/releases" / names[1])
    assert "is another build than releases/current names" in machine.apply()[1]
    # As `up` of an earlier checkout wrote it.
    azure.server.deployer.blobs[f"{account}/releases/current"] = file.name.encode()
    assert machine.apply() == (0, "remora: remora-0.1.0-py3-none-any runs as both\n")


@pytest.mark.soak
def test_a_release_that_went_back_is_not_tried_again_until_something_else_comes(
    azure: Subscription, machine: Machine, tmp_path: Path
) -> None:
    def calls() -> int:
        return len(machine.calls.read_text().splitlines())

    refused = machine.root / "var/lib/remora-apply/refused"
    bad = release(tmp_path, "0.2.0", server=GOES_BACK)
    azure.up("trial", "--wheel", str(bad))
    for _ in range(3):
        assert machine.apply() == (
            3,
            f"remora: {name_of(bad)} did not work, and is not tried again before there is another release or other"
            " settings, or after: rm /var/lib/remora-apply/refused; remora-server: api-1 does not work; the one before"
            " is in force again\n",
        )
    assert calls() == 1
    assert machine.mode("/var/lib/remora-apply/refused") == "-rw-------"
    # The operator says so.
    refused.unlink()
    assert machine.apply()[0] == 3
    assert calls() == 2
    # Other settings, with which it may work, and then fail for another reason.
    azure.up("trial", "--set", "imageVersion=1.0.1")
    for _ in range(2):
        assert machine.apply()[0] == 3
    assert calls() == 3
    # Another build.
    good = release(tmp_path, "0.3.0")
    azure.up("trial", "--set", "imageVersion=1.0.1", "--wheel", str(good))
    assert machine.apply() == (0, f"remora: {name_of(good)} runs as both\n")
    assert not refused.exists()
    assert machine.apply() == (0, "")
    assert calls() == 4


@pytest.mark.soak
def test_what_fails_for_another_reason_is_tried_each_minute(
    azure: Subscription, machine: Machine, tmp_path: Path
) -> None:
    fails = release(tmp_path, "0.2.0", server=GOES_BACK.replace(f"return {WENT_BACK}", "return 1"))
    azure.up("trial", "--wheel", str(fails))
    for _ in range(2):
        code, said = machine.apply()
        assert (code, said.endswith("looking again in a minute\n")) == (3, True)
    assert len(machine.calls.read_text().splitlines()) == 2


def test_a_vault_that_refuses_and_a_name_that_is_no_release_are_said(
    azure: Subscription, machine: Machine
) -> None:
    azure.up()
    azure.faults.all.append(EmulatorFault(at=FaultPoint.SECRET, status=403))
    code, said = machine.apply()
    assert (code, "(status 403)" in said) == (3, True)
    account = next(one["name"] for one in azure.resources if one["type"].endswith("/storageAccounts"))
    for name in (
        b"../../etc/passwd",
        b"remora-1.0-py3-none-any.whl 12ab",
        b"remora-1.0-py3-none-any.whl/../x",
        b"\xff\xfe",
        b"x" * 10_000,
    ):
        azure.server.deployer.blobs[f"{account}/releases/current"] = name
        code, said = machine.apply()
        assert (code, "names no wheel" in said) == (3, True)
        assert len(said) < 500


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to another user")
@pytest.mark.parametrize("place", ["ray-tls", ".ray.token.new", "ray.token", "ray-tls/authority.pem"])
def test_what_the_user_linked_in_its_home_is_not_followed(
    azure: Subscription, machine: Machine, tmp_path: Path, place: str
) -> None:
    azure.up()
    assert "releases/current" in machine.apply("nobody")[1]
    canary = tmp_path / "canary"
    canary.mkdir(mode=0o755)
    for name in ("authority.pem", "file"):
        (canary / name).write_text("as it was")
    link = machine.root / "var/lib/remora" / place
    if link.is_dir():
        shutil.rmtree(link)
    link.unlink(missing_ok=True)
    link.symlink_to(canary if place == "ray-tls" else canary / "file")
    code, said = machine.apply("nobody")
    assert (code, "ray-tls is no folder" in said) == (3, place == "ray-tls")
    assert [(path.stat().st_uid, path.read_text()) for path in sorted(canary.iterdir())] == [
        (0, "as it was")
    ] * 2
    assert (canary.stat().st_uid, stat.S_IMODE(canary.stat().st_mode)) == (0, 0o755)
    assert (machine.root / "var/lib/remora/ray.token").lstat().st_uid == pwd.getpwnam("nobody").pw_uid


def test_another_secret_of_the_cluster_waits_until_it_is_put_in_force(
    azure: Subscription, machine: Machine
) -> None:
    azure.up()
    name, waits = "remora-remora-ray-token", machine.root / "var/lib/remora-apply/ray.token"
    machine.apply()
    old = azure.resources.secret(name)
    assert machine.read("/var/lib/remora/ray.token") == old
    azure.put_secret(name, "another")
    for _ in range(2):
        said = machine.apply()[1]
        assert "the vault has another secret of the cluster" in said
        assert machine.read("/var/lib/remora/ray.token") == old
        assert (waits.read_text(), stat.S_IMODE(waits.stat().st_mode)) == ("another", 0o600)
    # What rotates has replaced the secret, and was killed before it removed what waited.
    (machine.root / "var/lib/remora/ray.token").write_text("another")
    assert "another secret" not in machine.apply()[1]
    assert waits.read_text() == "another"
    azure.put_secret(name, "a third")
    machine.apply()
    assert waits.read_text() == "a third"
    # The vault has the one in force again.
    azure.put_secret(name, "another")
    assert "another secret" not in machine.apply()[1]
    assert not waits.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files to another user")
def test_the_home_and_its_secrets_are_the_users(azure: Subscription, machine: Machine) -> None:
    azure.up()
    machine.apply("nobody")
    owner = pwd.getpwnam("nobody").pw_uid
    home = machine.root / "var/lib/remora"
    found = {str(path.relative_to(home)): path.stat() for path in (home, *home.rglob("*"))}
    assert sorted(found) == [".", "ray-tls", "ray-tls/authority.pem", "ray.token"]
    assert {one.st_uid for one in found.values()} == {owner}
    assert {stat.S_IMODE(one.st_mode) & 0o077 for one in found.values()} == {0}


def test_what_makes_backups_of_postgresql_is_installed_once_and_only_with_it(
    azure: Subscription, machine: Machine
) -> None:
    azure.up("trial")
    machine.apply()
    assert machine.installed() == []
    azure.up("trial", "--set", "postgres=true")
    for _ in range(2):
        assert "releases/current" in machine.apply()[1]
        assert machine.installed() == ["update -qq", "install -y -qq postgresql-client"]
    # An apt-get that brings nothing is not believed.
    (machine.programs / "pg_dump").unlink()
    (machine.programs / "apt-get").write_text("#!/bin/sh\n")
    assert "pg_dump is missing" in machine.apply()[1]
    (machine.programs / "apt-get").unlink()
    assert "apt-get cannot be run: No such file" in machine.apply()[1]


def test_a_folder_in_the_place_of_a_secret_is_said(azure: Subscription, machine: Machine) -> None:
    azure.up()
    (machine.root / "var/lib/remora/ray.token").mkdir(parents=True)
    code, said = machine.apply()
    assert (code, "ray.token cannot be written: Is a directory" in said) == (3, True)
