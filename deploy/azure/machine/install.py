#!/usr/bin/python3
"""Makes a machine what its document says: settings, secrets of the vault, the newest release; called each minute.

    install.py DOCUMENT [--root /] [--metadata URL] [--user remora]

It runs on the machine's own Python, before anything of Remora is there, and needs nothing but the standard library.
Whatever is missing yet, such as a role, a secret or a release, is said in one sentence, and the next call looks again.
A call that was cut off is repeated as a whole: what says that all is done is written last.
"""

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import pwd
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

#: What the file `current` of the releases says: a wheel and its digest, which `up` of an earlier checkout left out.
CURRENT = re.compile(r"(remora-([A-Za-z0-9_.+!]{1,60})-py3-none-any\.whl)(?: ([0-9a-f]{64}))?")
#: The home of the service, which its user owns.
HOME = "/var/lib/remora"
#: Files of settings that only the service's user may read.
CLOSED = ("/etc/remora/storage.json",)
#: In the home, the secret with which the processes of the Ray cluster run.
RAY_FILE = "ray.token"
#: The vault's, where it is another one: `remora-server rotate` puts it in force and removes the file.
NEXT_FILE = "/var/lib/remora-apply/ray.token"
#: The release and settings that `remora-server` has gone back from, and why; nothing else is tried with them.
REFUSED_FILE = "/var/lib/remora-apply/refused"
#: Exit status of `remora-server` that has put the release before in force again.
WENT_BACK = 4
MOST_BYTES = 100 * 2**20
MOST_SECRET_BYTES = 2**16
#: Without the proxy of the environment: the metadata service is on the machine itself.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NotYet(Exception):
    """Something is missing that may be there a minute later; the message is one sentence."""


class WentBack(Exception):
    """`remora-server` has put the release before in force again; the message is one sentence."""


class Machine:
    """The machine below a root folder, with the identity by which it asks."""

    def __init__(self, document, root, metadata, user):
        self.document = document
        self.root = root
        self.metadata = metadata
        self.user = user

    def path(self, name):
        """A path of the machine."""
        return self.root / name.lstrip("/")

    def token(self, resource):
        """A token of the machine's identity."""
        query = {"api-version": "2018-02-01", "resource": resource, "client_id": self.document["client_id"]}
        url = f"{self.metadata}/metadata/identity/oauth2/token?{urllib.parse.urlencode(query)}"
        return json.loads(fetched(url, {"Metadata": "true"}, "the metadata service"))["access_token"]

    def secret(self, name):
        """The newest value of a secret."""
        url = f"{self.document['vault']}/secrets/{name}?api-version=7.4"
        headers = {"Authorization": f"Bearer {self.token('https://vault.azure.net')}"}
        return json.loads(fetched(url, headers, f"the secret {name} of the vault"))["value"]

    def blob(self, name):
        """The content of a blob of the releases."""
        headers = {"Authorization": f"Bearer {self.token('https://storage.azure.com')}"}
        headers["x-ms-version"] = "2024-11-04"
        return fetched(f"{self.document['releases']}/{name}", headers, f"releases/{name} of the storage")

    def write(self, name, content, mode, is_of_user=False):
        """Write a file of a folder that is root's, whole or not at all.  Raises NotYet."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with folder_of(path.parent) as folder:
            self.put(folder, path, content, mode, is_of_user)

    def write_secret(self, file, content):
        """Write a file of the user's home, which follows no link: a process of the user may have made one.

        Raises NotYet.
        """
        path = self.path(HOME) / file
        with contextlib.ExitStack() as opened:
            folder = opened.enter_context(folder_of(self.path(HOME)))
            for part in Path(file).parts[:-1]:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, mode=0o700, dir_fd=folder)
                folder = opened.enter_context(folder_of(part, folder))
                os.fchmod(folder, 0o700)
                self.give(folder)
            self.put(folder, path, content, 0o600, is_of_user=True)

    def read_secret(self, file):
        """What a file directly in the user's home has, nothing where there is none; no link is followed."""
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with (
                folder_of(self.path(HOME)) as folder,
                open(os.open(file, flags, dir_fd=folder), "rb") as opened,
            ):
                return opened.read(MOST_SECRET_BYTES)
        except OSError:
            return b""

    def put(self, folder, path, content, mode, is_of_user):
        """Replace a file of an open folder."""
        draft = f".{path.name}.new"
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(draft, dir_fd=folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with open(os.open(draft, flags, mode, dir_fd=folder), "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), mode)
                if is_of_user:
                    self.give(file.fileno())
                os.fsync(file.fileno())
            os.replace(draft, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except OSError as error:
            raise NotYet(f"{path} cannot be written: {error.strerror}") from None

    def give(self, descriptor):
        """Let what is open be the user's."""
        owner = pwd.getpwnam(self.user)
        os.fchown(descriptor, owner.pw_uid, owner.pw_gid)


@contextlib.contextmanager
def folder_of(path, within=None):
    """Open a folder, which no link is followed to.  Raises NotYet."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=within)
    except OSError as error:
        raise NotYet(f"{path} is no folder, or cannot be opened: {error.strerror}; remove it") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def fetched(url, headers, what):
    """What an address answers.  Raises NotYet."""
    try:
        with OPENER.open(urllib.request.Request(url, headers=headers), timeout=60) as answer:
            return answer.read(MOST_BYTES)
    except urllib.error.HTTPError as error:
        raise NotYet(f"{what} is refused or missing yet (status {error.code})") from None
    except OSError as error:
        raise NotYet(f"{what} does not answer: {error}") from None


def make_user(machine):
    """The user of the service's processes, without a login."""
    try:
        pwd.getpwnam(machine.user)
    except KeyError:
        run("useradd", "--system", "--user-group", "--home-dir", HOME, machine.user)
    home = machine.path(HOME)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with folder_of(home) as folder:
        os.fchmod(folder, 0o700)
        machine.give(folder)


def run(*words):
    """Run a program.  Raises NotYet with the end of what it said, and WentBack."""
    try:
        done = subprocess.run(
            words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
    except OSError as error:
        raise NotYet(f"{words[0]} cannot be run: {error.strerror}") from None
    if done.returncode == WENT_BACK and words[1:2] == ("install",):
        raise WentBack((done.stdout.strip().splitlines() or ["it said nothing"])[-1][-500:])
    if done.returncode != 0:
        raise NotYet(f"{' '.join(words[:4])} failed: {done.stdout.strip()[-500:]}")


def install_package(name):
    """Install a package of the machine's own distribution."""
    run("apt-get", "update", "-qq")
    run("apt-get", "install", "-y", "-qq", name)


def install_client():
    """The programs by which `remora-server` makes a backup of PostgreSQL; each upgrade begins with one."""
    if shutil.which("pg_dump") is None:
        install_package("postgresql-client")
        if shutil.which("pg_dump") is None:
            raise NotYet("postgresql-client is installed, and pg_dump is missing")


def install_release(machine):
    """The folder of the newest release, installed; two builds of one version are two releases."""
    said = machine.blob("current").decode(errors="replace").strip()
    match = CURRENT.fullmatch(said)
    if not match:
        raise NotYet(f"releases/current of the storage names no wheel: {said[:80]!r}")
    name, version, wanted = match.groups()
    # As `remora-server` names it.
    release = f"{version}-{wanted[:12]}" if wanted else name[:-4]
    folder = machine.path(f"/opt/remora/releases/{release}")
    # `remora-server` looks for the same file in a release.
    if (folder / ".complete").exists():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with alone(machine):
        make_release(machine, folder, name, wanted)
    return folder


@contextlib.contextmanager
def alone(machine):
    """Keep commands of `remora-server` from removing a release that is not whole yet.  Raises NotYet."""
    with open(
        os.open(machine.path("/opt/remora/commands.lock"), os.O_RDWR | os.O_CREAT, 0o600), "wb"
    ) as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotYet("a command of remora-server runs on this machine") from None
        yield


def make_release(machine, folder, name, wanted):
    """Install a wheel of the storage as a release."""
    content = machine.blob(name)
    if wanted and hashlib.sha256(content).hexdigest() != wanted:
        raise NotYet(f"releases/{name} of the storage is another build than releases/current names")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wheel = machine.path(f"/opt/remora/wheels/{name}")
    wheel.parent.mkdir(parents=True, exist_ok=True)
    wheel.write_bytes(content)
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True).returncode != 0:
        install_package("python3-venv")
    run(sys.executable, "-m", "venv", str(folder))
    python = str(folder / "bin/python")
    run(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        f"{wheel}[service,azure,tracing]",
    )
    wheel.unlink()
    (folder / ".complete").touch()


def write_settings(machine):
    """Settings and secrets; returns a digest of all of them but the cluster's secret, which restarts nothing."""
    digest = hashlib.sha256()
    document = machine.document
    secrets = {file: machine.secret(name) for file, name in document["secrets"].items()}
    if RAY_FILE in secrets:
        write_ray_token(machine, secrets.pop(RAY_FILE).encode())
    for file, value in sorted(secrets.items()):
        machine.write_secret(file, value.encode())
    for name, content in sorted(document["files"].items()):
        closed = name in CLOSED
        machine.write(name, content.encode() + b"\n", 0o600 if closed else 0o644, is_of_user=closed)
    if document["database"]:
        password = urllib.parse.quote(secrets["postgres.password"], safe="")
        url = f"postgresql://remora:{password}@{document['database']}/remora?sslmode=require"
        machine.write(
            "/etc/remora/database.env", f"REMORA_DATABASE_URL={url}\n".encode(), 0o600, is_of_user=True
        )
    digest.update(json.dumps([document, secrets], sort_keys=True).encode())
    return digest.hexdigest()


def write_ray_token(machine, value):
    """Write the secret of the Ray cluster where there is none; another one waits until Ray's processes are replaced.

    Those of one cluster have one secret, and take it when they start.
    """
    in_force, waits = machine.read_secret(RAY_FILE), machine.path(NEXT_FILE)
    if not in_force:
        machine.write_secret(RAY_FILE, value)
    elif value != in_force:
        machine.write(NEXT_FILE, value, 0o600)
        print(
            "remora: the vault has another secret of the cluster: put it in force with"
            " /opt/remora/current/bin/remora-server rotate --yes",
            flush=True,
        )
    elif waits.exists() and waits.read_bytes() != value:
        # The vault has the one in force again.
        waits.unlink()


def check_refused(machine, wanted):
    """Raise WentBack for a release that did not work with these settings: each try stops the service for seconds."""
    path = machine.path(REFUSED_FILE)
    try:
        first, _, reason = path.read_text(errors="replace").partition("\n")
    except FileNotFoundError:
        return
    if f"{first}\n" != wanted:
        # There is another build, or other settings.
        path.unlink()
        return
    raise WentBack(
        f"{first.split()[0]} did not work, and is not tried again before there is another release or other settings, or"
        f" after: rm {REFUSED_FILE}; {' '.join(reason.split())}"
    )


def apply(machine):
    """Everything; returns a sentence for the journal."""
    make_user(machine)
    digest = write_settings(machine)
    if machine.document["database"]:
        install_client()
    folder = install_release(machine)
    done, wanted = machine.path("/var/lib/remora-apply/done"), f"{folder.name} {digest}\n"
    check_refused(machine, wanted)
    if done.exists() and done.read_text() == wanted:
        return ""
    server = folder / "bin/remora-server"
    if not server.exists():
        raise NotYet(
            f"{folder.name} has no remora-server; start its processes with the settings of /etc/remora"
        )
    given = ["--role", machine.document["role"], "--user", machine.user]
    # A release before knows the options, and has one of each on such a machine.
    count = str(machine.document.get("service_count", 1))
    if machine.document["role"] != "head":
        given += ["--apis", count, "--controllers", count]
    try:
        run(str(server), "install", *given)
    except WentBack as reason:
        machine.write(REFUSED_FILE, f"{wanted}{reason}\n".encode(), 0o600)
        check_refused(machine, wanted)
    machine.write("/var/lib/remora-apply/done", wanted.encode(), 0o600)
    return f"{folder.name} runs as {machine.document['role']}"


def main(arguments):
    """0: done, or nothing to do; 3: something is missing yet, or the release did not work."""
    parser = argparse.ArgumentParser(prog="install.py")
    parser.add_argument("document", type=Path)
    parser.add_argument("--root", type=Path, default=Path("/"))
    parser.add_argument("--metadata", default="http://169.254.169.254")
    parser.add_argument("--user", default="remora")
    options = parser.parse_args(arguments)
    # What starts this lets root alone read; secrets have modes of their own, and the user reads all else.
    os.umask(0o022)
    document = json.loads(options.document.read_text())
    try:
        said = apply(Machine(document, options.root, options.metadata, options.user))
    except NotYet as reason:
        print(f"remora: {reason}; looking again in a minute", flush=True)
        return 3
    except WentBack as reason:
        print(f"remora: {reason}", flush=True)
        return 3
    if said:
        print(f"remora: {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
