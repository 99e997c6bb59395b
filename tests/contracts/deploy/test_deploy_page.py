"""Every command of docs/deploy.md is one that a test runs, or stands in the checklist of the first run."""

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
    for block in re.findall(r"```\n(.*?)```", pages()["docs/deploy.md"], re.DOTALL)
    for line in block.splitlines()
]


def test_the_page_has_commands_of_each_kind() -> None:
    programs = {line.split()[0] for line in LINES}
    assert programs == {"deploy/azure/up", "deploy/azure/down", "make", "az"}


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("az ")])
def test_a_command_of_azure_stands_in_the_checklist(line: str) -> None:
    assert line in pages()["docs/azure-first-run.md"]


def test_the_commands_of_deploy_do_what_the_page_says(azure: Subscription, tmp_path: Path) -> None:
    release = tmp_path / wheel(tmp_path, "remora", "0.1.0")
    places = {"$S": "", "$MY_ADDRESS": "203.0.113.7", "~/.ssh/id_ed25519.pub": str(azure.key)}
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
