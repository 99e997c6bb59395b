"""Every command of docs/deploy.md and of the README of deploy/azure is one that a test runs, or is in the checklist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.architecture.repository import pages
from tests.contracts.deploy.subscription import Subscription
from tests.wheels import wheel

LINES = [
    line
    for page in ("deploy/azure/README.md", "docs/deploy.md")
    for block in re.findall(r"```\n(.*?)```", pages()[page], re.DOTALL)
    for line in block.splitlines()
]


def test_the_page_has_commands_of_each_kind() -> None:
    programs = {line.split()[0] for line in LINES}
    assert programs == {"deploy/azure/up", "deploy/azure/down", "make", "az"}


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("az ")])
def test_a_command_of_azure_stands_in_the_checklist(line: str) -> None:
    assert line in pages()["docs/azure-first-run.md"]


#: What pages ask people to run and no test can: the page, its words, and what stands in the checklist's row.
ONLY_THERE = (
    ("docs/deploy.md", "make wheel", "`make wheel` ends with `dist/remora-0.1.0-py3-none-any.whl`"),
    ("docs/deploy.md", "`az login`", "`az login` opens a browser and ends with"),
    ("docs/deploy.md", "`--set imageVersion=1.0.1`", "`--set imageVersion=1.0.1`: its `--what-if` shows `~`"),
    (
        "docs/day-two.md",
        "`journalctl -u remora-api-1`",
        "`journalctl -u remora-api-1 --output cat` shows lines",
    ),
    (
        "docs/day-two.md",
        "remora-server install --wheel remora-0.1.0-py3-none-any.whl --head 10.0.0.4:6379 --user remora",
        "`sudo remora-server install --wheel remora-0.1.0-py3-none-any.whl --head 10.0.0.4:6379 --user remora`",
    ),
    (
        "docs/deploy.md",
        "`SSL_CERT_FILE=remora-$CLUSTER-authority.pem remora login --server https://$NAME:7265`",
        "`SSL_CERT_FILE=remora-$CLUSTER-authority.pem remora login --server https://$NAME:7265`, shows",
    ),
    (
        "docs/deploy.md",
        "`sudo rm /var/lib/remora-apply/refused`",
        "After `sudo rm /var/lib/remora-apply/refused` it is tried once more",
    ),
    (
        "docs/deploy.md",
        "`sudo /opt/remora/current/bin/remora-server rotate --yes`",
        "`the cluster has another secret; 0 nodes of this machine ended",
    ),
    ("docs/deploy.md", "the same name at port 7266 does", "`curl https://NAME:7266/healthz` answers `200`"),
)


@pytest.mark.parametrize(("page", "words", "expected"), ONLY_THERE, ids=[one[1] for one in ONLY_THERE])
def test_what_no_test_can_run_is_a_row_of_the_checklist_with_what_it_prints(
    page: str, words: str, expected: str
) -> None:
    assert words in pages()[page]
    rows = re.split(r"\n(?=- \[ \] |\n)", pages()["docs/azure-first-run.md"])
    (row,) = [one for one in rows if one.strip().startswith("- [ ]") and expected in one]
    assert re.search(r"\b(says|prints|answers|ends with|shows|is)\b", row)


def test_the_commands_of_deploy_do_what_the_page_says(azure: Subscription, tmp_path: Path) -> None:
    release = tmp_path / wheel(tmp_path, "remora", "0.1.0")
    places = {"$S": "", "$MY_ADDRESS": "203.0.113.7", "~/.ssh/id_ed25519.pub": str(azure.key)}
    places["$RESEARCH"] = "11111111-1111-1111-1111-111111111111"
    for line in (line for line in LINES if line.startswith("deploy/")):
        for name, value in places.items():
            line = line.replace(name, value)
        program, *words = shlex.split(line.replace("dist/remora-0.1.0-py3-none-any.whl", str(release)))
        words.remove("--subscription")
        if program.endswith("up"):
            assert azure.call_up(*(word for word in words if word)) == 0
        else:
            assert words == ["--cluster", "remora"]
            assert azure.down() == 0
    assert azure.leftovers() == []
