#!/usr/bin/python3
"""Makes a machine what its document says: settings, secrets of the vault, the newest release; called each minute.

    install.py DOCUMENT [--root /] [--metadata URL] [--user remora]

It runs on the machine's own Python, before anything of Remora is there, and needs nothing but the standard library.
Whatever is missing yet, such as a role, a secret or a release, is said in one sentence, and the next call looks again.
A call that was cut off is repeated as a whole: what says that all is done is written last.
"""

import argparse
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

WHEEL = re.compile(r"remora-[A-Za-z0-9_.+!]{1,60}-py3-none-any\.whl")
#: Files of settings that only the service's user may read.
CLOSED = ("/etc/remora/storage.json",)
MOST_BYTES = 100 * 2**20
#: Without the proxy of the environment: the metadata service is on the machine itself.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class NotYet(Exception):
    """Something is missing that may be there a minute later; the message is one sentence."""


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
        """Write a file, whole or not at all, unless it is there already."""
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(content)
        os.chmod(draft, mode)
        if is_of_user:
            shutil.chown(draft, self.user, self.user)
        os.replace(draft, path)


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
        run("useradd", "--system", "--user-group", "--home-dir", "/var/lib/remora", machine.user)
    home = machine.path("/var/lib/remora")
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.chown(home, machine.user, machine.user)


def run(*words):
    """Run a program.  Raises NotYet with the end of what it said."""
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    if done.returncode != 0:
        raise NotYet(f"{' '.join(words[:4])} failed: {done.stdout.strip()[-500:]}")


def install_release(machine):
    """The folder of the newest release, installed."""
    name = machine.blob("current").decode(errors="replace").strip()
    if not WHEEL.fullmatch(name):
        raise NotYet(f"releases/current of the storage names no wheel: {name[:80]!r}")
    folder = machine.path(f"/opt/remora/releases/{name[:-4]}")
    # `remora-server` looks for the same file in a release.
    if (folder / ".complete").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    wheel = machine.path(f"/opt/remora/wheels/{name}")
    wheel.parent.mkdir(parents=True, exist_ok=True)
    wheel.write_bytes(machine.blob(name))
    if subprocess.run([sys.executable, "-c", "import ensurepip"], capture_output=True).returncode != 0:
        run("apt-get", "update", "-qq")
        run("apt-get", "install", "-y", "-qq", "python3-venv")
    run(sys.executable, "-m", "venv", str(folder))
    python = str(folder / "bin/python")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{wheel}[service,azure]")
    wheel.unlink()
    (folder / ".complete").touch()
    return folder


def write_settings(machine):
    """Settings and secrets; returns a digest of all of them."""
    digest = hashlib.sha256()
    document = machine.document
    secrets = {file: machine.secret(name) for file, name in document["secrets"].items()}
    for file, value in sorted(secrets.items()):
        for folder in Path(file).parents[:-1]:
            inside = machine.path(f"/var/lib/remora/{folder}")
            inside.mkdir(mode=0o700, exist_ok=True)
            shutil.chown(inside, machine.user, machine.user)
        machine.write(f"/var/lib/remora/{file}", value.encode(), 0o600, is_of_user=True)
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


def apply(machine):
    """Everything; returns a sentence for the journal."""
    make_user(machine)
    digest = write_settings(machine)
    folder = install_release(machine)
    done, wanted = machine.path("/var/lib/remora-apply/done"), f"{folder.name} {digest}\n"
    if done.exists() and done.read_text() == wanted:
        return ""
    server = folder / "bin/remora-server"
    if not server.exists():
        raise NotYet(
            f"{folder.name} has no remora-server; start its processes with the settings of /etc/remora"
        )
    run(str(server), "install", "--role", machine.document["role"], "--user", machine.user)
    machine.write("/var/lib/remora-apply/done", wanted.encode(), 0o600)
    return f"{folder.name} runs as {machine.document['role']}"


def main(arguments):
    """0: done, or nothing to do; 3: something is missing yet."""
    parser = argparse.ArgumentParser(prog="install.py")
    parser.add_argument("document", type=Path)
    parser.add_argument("--root", type=Path, default=Path("/"))
    parser.add_argument("--metadata", default="http://169.254.169.254")
    parser.add_argument("--user", default="remora")
    options = parser.parse_args(arguments)
    document = json.loads(options.document.read_text())
    try:
        said = apply(Machine(document, options.root, options.metadata, options.user))
    except NotYet as reason:
        print(f"remora: {reason}; looking again in a minute", flush=True)
        return 3
    if said:
        print(f"remora: {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
