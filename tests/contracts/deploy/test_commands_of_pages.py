"""Every command of the pages on a deployment is run by a test, or is a row of the first run's checklist."""

from __future__ import annotations

import re

import pytest

from tests.architecture.repository import ROOT, pages

PAGES = ("deploy/azure/README.md", "docs/deploy.md", "docs/day-two.md")
PROGRAMS = re.compile(
    r"(?:sudo |[A-Z_]+=\S+ )*(?:\S*/)?(?:az|cat|journalctl|make|openssl|remora|remora-server|rm|supervisord"
    r"|supervisorctl|systemctl|up|down) \S"
)
#: Commands that a test runs, by their first words, and of the test its file and words in it.
RUN_BY = {
    "deploy/azure/up ": ("tests/contracts/deploy/test_deploy_page.py", "azure.call_up("),
    "deploy/azure/down ": ("tests/contracts/deploy/test_deploy_page.py", "azure.down()"),
    "make demo-server": ("tests/e2e/test_demo_server.py", 'command_of("demo-server"'),
    "make soak": (".ci/run", "make soak-changed"),
    "make template": ("tests/unit/deploy/test_bicep_compiler.py", "main.json"),
    "remora pause": ("tests/e2e/test_owners.py", 'service.remora("pause"'),
    "remora resume": ("tests/e2e/test_owners.py", 'service.remora("resume"'),
    "remora secrets rotate": ("tests/contracts/service/test_secret_commands.py", 'secrets("rotate")'),
    "remora tokens create": ("tests/contracts/service/test_token_commands.py", 'cli("tokens", "create"'),
    "remora tokens revoke": ("tests/contracts/service/test_token_commands.py", 'cli("tokens", "revoke"'),
    "remora up": ("tests/e2e/embedded.py", "`remora up`"),
    "remora-server backup ": ("examples/demo_server.py", 'machine.command("backup"'),
    "remora-server certificates ": (
        "tests/unit/service/installation/test_machines_beside.py",
        'main(["certificates"',
    ),
    "remora-server drivers ": (
        "tests/unit/service/installation/test_machines_beside.py",
        '[command, "drivers"',
    ),
    "remora-server install --role ROLE": ("tests/contracts/deploy/test_azure_installer.py", "--role"),
    "remora-server migrate": ("tests/contracts/service/test_upgrades.py", '"migrate"'),
    "remora-server restore ": ("examples/demo_server.py", 'machine.command("restore"'),
    "supervisord -c ": ("examples/installed_server.py", '"supervisor.supervisord", "-c"'),
}


def commands() -> list[tuple[str, str]]:
    """Page and command, of blocks and of sentences, without what a program prints."""
    found = []
    for page in PAGES:
        text = pages()[page]
        lines = [
            line for block in re.findall(r"```\n(.*?)```", text, re.DOTALL) for line in block.splitlines()
        ]
        sentences = re.sub(r"```\n.*?```", "", text, flags=re.DOTALL)
        spans = [" ".join(one.split()) for one in re.findall(r"`([^`]+)`", sentences)]
        found += [(page, one) for one in [*lines, *spans] if PROGRAMS.match(one)]
    return list(dict.fromkeys(found))


def test_the_pages_have_commands() -> None:
    assert {page for page, _ in commands()} == set(PAGES)
    assert len(commands()) > 25


@pytest.mark.parametrize(("page", "command"), commands(), ids=lambda one: one[-60:])
def test_a_command_is_run_by_a_test_or_stands_in_the_checklist(page: str, command: str) -> None:
    tests = [where for words, where in RUN_BY.items() if command.startswith(words.rstrip())]
    for file, words in tests:
        assert words in (ROOT / file).read_text(), file
    if not tests:
        rows = re.split(r"\n(?=- \[ \] |\n)", pages()["docs/azure-first-run.md"])
        listed = [" ".join(row.split()) for row in rows if row.startswith("- [ ]")]
        assert [row for row in listed if command in row], f"{page}: no test and no row has {command}"


@pytest.mark.parametrize("words", RUN_BY)
def test_the_table_names_no_command_that_no_page_has(words: str) -> None:
    assert [one for _, one in commands() if one.startswith(words.rstrip())]
