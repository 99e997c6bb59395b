"""Two teams on one service: `make demo-team`.

Three people sign in at an issuer on loopback.  Alice's job has a secret and prints it; Bob, of another team, submits a
job that tries to read, reach and end what is not its own, and asks the API for what is Alice's; Olga operates the
service and reads the audit.  The last line of standard output is JSON: what the hostile job found, where the secret was
seen, what Bob could read, how jobs are kept apart and what that costs at the start of a command.

As root it runs in a network namespace of its own, where the service installs its rules for connections and the cloud's
metadata service is an emulated one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
from rich.console import Console
from rich.table import Table

from benchmarks import walls
from cluster.local.folders import ClusterFolders
from examples.demo import DemoFailed, check, embedded_service, processes_of, wait_for
from examples.openid_issuer import Issuer, serve_issuer
from examples.team import attack
from remora import Client
from remora.client.device_flow import DeviceFlow, Prompt
from remora.errors import RemoraError
from remora.machine_isolation import offered
from remora.roles import EVERYWHERE, Role
from remora.states import JobState
from remora.views import Job

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "examples/team"
#: Seconds for what happens within the service.
SOON_S, ATTACK_S = 60.0, 180.0
#: Set where the demo has a network namespace of its own.
APART = "REMORA_DEMO_APART"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--home", type=Path, default=ROOT / ".demo-team", help="made new; stays for you to look at"
    )
    home, console = parser.parse_args().home.resolve(), Console()
    if os.geteuid() == 0 and APART not in os.environ:
        return in_own_network(sys.argv)
    if APART in os.environ:
        attack.emulate_metadata()
    try:
        with serve_issuer() as issuer:
            settings(issuer, home)
            with embedded_service(home, console, 2) as server:
                result = run(server, issuer, home, console)
        left = processes_of(home)
        check(not left, f"processes were left behind: {left}")
    except (DemoFailed, RemoraError) as error:
        console.print(f"[red]The demo failed:[/red] {error}\nLogs lie in {home / 'logs'}.")
        return 1
    print(json.dumps(result))
    return 0


def in_own_network(words: list[str]) -> int:
    """Run the same demo in a network namespace that has nothing but its own loopback."""
    inside = ["sh", "-c", 'ip link set lo up && exec "$0" "$@"', sys.executable, *words]
    return subprocess.run(["unshare", "-n", *inside], env={**os.environ, APART: "1"}, check=False).returncode


def settings(issuer: Issuer, home: Path) -> None:
    """What the operator of the service writes into its environment."""
    trusted = {"corp": {"issuer": issuer.url, "audience": "remora", "client_id": "cli"}}
    os.environ |= {
        "REMORA_AUTHENTICATION": "required",
        "REMORA_OPENID": json.dumps(trusted),
        "REMORA_ISOLATION": "users",
        "REMORA_NODE_CPUS": "2",
        "REMORA_MAX_SHM_BYTES": str(2 * attack.HELD_BYTES),
        "AZURE_CLIENT_SECRET": attack.canary("service"),
        "REMORA_HOME": str(home),
    }
    if APART in os.environ:
        os.environ["REMORA_NETWORK_RULES"] = "true"


def run(server: str, issuer: Issuer, home: Path, console: Console) -> dict[str, Any]:
    """Everything that the three people do, and what came of it."""
    with Client(server) as operator:
        operator.put_grant("group:corp/ops", EVERYWHERE, Role.OPERATOR)
        operator.put_grant("user:corp/alice", "vision", Role.ADMIN)
        operator.put_grant("user:corp/bob", "language", Role.SUBMITTER)
    members = {"alice": (), "bob": (), "olga": ("ops",)}
    tokens = {name: sign_in(server, issuer, name, *groups) for name, groups in members.items()}
    with (
        Client(server, token=tokens["alice"]) as alice,
        Client(server, token=tokens["bob"]) as bob,
        Client(server, token=tokens["olga"]) as olga,
    ):
        console.print("alice, bob and olga have signed in; each sees what their roles allow.")
        secret = f"hf_{secrets.token_urlsafe(24)}"
        alice.set_secret("HF_TOKEN", secret, project="vision")
        victim = alice.submit(ordinary_job())
        wait_for(lambda: "READY" in log_of(alice, victim), SOON_S, "alice's job did not print its last line")
        check(
            "The token is [secret HF_TOKEN]" in log_of(alice, victim),
            "alice's job has not printed its secret",
        )
        console.print(f"alice's job {victim.id} runs with a secret, which it has printed in five forms.")
        findings = hostile_findings(bob, victim, home, server, console)
        read = cross_project_reads(server, tokens["bob"], victim)
        console.print(f"bob asked for everything of that job, and got {len(read)} answers about it.")
        check(alice.job(victim.id).state is JobState.RUNNING, "alice's job was ended by another one")
        seen = leaks(secret, home, [log_of(alice, victim), *(str(one) for one in olga.audit(limit=None))])
        alice.cancel(victim.id)
        alice.wait(victim.id, SOON_S)
        print_audit(console, olga)
        entries = len(olga.audit(limit=None))
    return {
        "hostile_findings": findings,
        "leaked_secrets": seen,
        "cross_project_reads": read,
        "isolation": os.environ["REMORA_ISOLATION"],
        "start_overhead_ms": start_overhead_ms(),
        "audit_entries": entries,
    }


def sign_in(server: str, issuer: Issuer, name: str, *groups: str) -> str:
    """A person's token, as `remora login` would get it: the person enters the code at the issuer."""

    def enter(prompt: Prompt) -> None:
        issuer.approve(prompt.code, name, *groups)

    with Client(server, token="") as stranger:
        (way,) = stranger.sign_in_ways().issuers
    with DeviceFlow(way) as flow:
        token = flow.sign_in(enter).token
    with Client(server, token=token) as client:
        check(client.whoami().id == f"user:corp/{name}", f"{name} is taken for another user")
    return token


def ordinary_job() -> dict[str, Any]:
    return {
        "name": "ordinary",
        "project": "vision",
        "command": ["python", "ordinary.py", attack.canary("argument")],
        "code": str(FOLDER),
        "environment": {
            "variables": {"PRIVATE": attack.canary("victim")},
            "secrets": [{"name": "HF_TOKEN", "variable": "HF_TOKEN"}],
        },
    }


def hostile_findings(bob: Client, victim: Job, home: Path, server: str, console: Console) -> list[str]:
    """What Bob's job reports, and what is seen of it from outside."""
    daemon = f"daemon-{secrets.token_hex(4)}"
    hint = attack.hints(home, server, victim.id, daemon)
    if APART not in os.environ:
        # There the metadata service is that of a real cloud, or none.
        for what in attack.CLOUD:
            hint["ports"].pop(what)
    job = bob.submit(
        {
            "name": "hostile",
            "project": "language",
            "command": ["python", "hostile.py"],
            "code": str(FOLDER),
            "environment": {"variables": {"HOSTILE_HINTS": json.dumps(hint)}},
        }
    )
    console.print(f"bob's job {job.id} tries to read, reach and end what is not its own ...")
    done = bob.wait(job.id, ATTACK_S)
    reports = attack.FINDINGS.findall(log_of(bob, job))
    check(bool(reports), f"the hostile job made no report; it ended as {done.state.value}: {done.message}")
    findings: list[str] = json.loads(reports[-1])
    if done.state is not JobState.SUCCEEDED:
        findings.append(f"it ended as {done.state.value}: {done.message}")
    if attack.left_behind(daemon):
        findings.append("a process outlived it")
    return findings + attack.stolen(home / "storage", job.id, hint)


def cross_project_reads(server: str, token: str, victim: Job) -> list[str]:
    """Every operation that reads something of a job, as Bob: those that answer anything but 404."""
    headers = {"Authorization": f"Bearer {token}"}
    answered = []
    with httpx2.Client(base_url=server, headers=headers, trust_env=False) as http:
        for path, operations in http.get("/openapi.json").json()["paths"].items():
            if "get" not in operations or "{job_id}" not in path:
                continue
            url = re.sub(r"\{\w+\}", "1", path.replace("{job_id}", victim.id))
            if http.get(url).status_code != 404:
                answered.append(f"GET {path}")
        listed = http.get("/v1/jobs", params={"project": "vision"}).json()["items"]
    return answered + [f"GET /v1/jobs lists {one['id']}" for one in listed]


def leaks(secret: str, home: Path, texts: list[str]) -> list[str]:
    """Where the secret stands in clear: in texts that the API gave, or in files of the service, its nodes and Ray."""
    found = ["an answer of the API" for text in texts if secret in text]
    folders = (home, ClusterFolders(home).temporary)
    for path in (path for folder in folders for path in folder.rglob("*")):
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and secret.encode() in path.read_bytes():
                found.append(str(path.relative_to(home) if path.is_relative_to(home) else path.name))
    return found


def start_overhead_ms() -> float:
    """What being kept apart costs at the start of a command: the median of several starts, with it and without."""
    os.environ.pop("REMORA_NETWORK_RULES", None)
    found = walls.started_ms()
    check(bool(found), f"this machine keeps no commands apart: {offered().why_not}")
    return round(found["users"] - found["none"], 1)


def log_of(client: Client, job: Job) -> str:
    return "\n".join(line.text for line in client.logs(job.id))


def print_audit(console: Console, olga: Client) -> None:
    """The newest writes, as `remora audit` shows them."""
    table = Table("who", "operation", "project", "object", "outcome", title="what olga reads in the audit")
    for one in reversed(list(olga.audit(limit=12))):
        table.add_row(one.principal, one.operation, one.project or "", one.object or "", one.outcome)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
