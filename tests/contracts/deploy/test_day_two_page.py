"""Every command of remora-server on docs/day-two.md is one that the program takes, and the page leaves none out."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest

from service.installation.arguments import parser
from tests.architecture.repository import pages

PAGE = pages()["docs/day-two.md"]
#: What units and containers call, and no person.
INTERNAL = {"health", "prepare", "process", "run"}
#: In blocks and in sentences.
COMMANDS = re.findall(r"^remora-server .*$", PAGE, re.MULTILINE) + re.findall(
    r"`(remora-server [^`\n]+)`", PAGE
)


def subcommands() -> set[str]:
    (found,) = (one for one in parser()._actions if isinstance(one, argparse._SubParsersAction))
    return set(found.choices)


def test_the_page_has_every_command() -> None:
    assert {shlex.split(command)[1] for command in COMMANDS} == subcommands() - INTERNAL


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_is_taken(command: str) -> None:
    _, name, *words = shlex.split(command)
    required = {"upgrade": ["--wheel", "w"], "backup": ["f"], "restore": ["f"]}
    given = parser().parse_args([name, *(words or required.get(name, []))])
    assert given.command == name
