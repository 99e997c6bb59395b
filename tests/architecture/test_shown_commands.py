"""Commands that the pages show can be given as they stand: they exist, and their options do."""

from __future__ import annotations

import functools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from remora.cli.exits import ExitCode
from remora.cli.main import app
from tests.architecture.repository import ROOT, blocks, pages

#: What every command takes, and what only the cli page says once for all.
EVERYWHERE = {"--help", "--json", "--server"}
OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][A-Za-z-]*")
COMMAND = typer.main.get_command(app)


# --- commands of remora


def shown_on(page: str) -> Iterator[str]:
    """Every line of code on a page: those of blocks, without what a comment says, and words in backticks."""
    text = pages()[page]
    for block in re.findall(r"```.*?\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield line.partition(" #")[0]
    yield from re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def calls_of_remora(line: str) -> Iterator[str]:
    for part in re.split(r"&&|\||;|\$\(|──", line.replace(r"\|", " ")):
        found = re.match(r"\s*(?:\w+=)?(?:\.venv/bin/)?remora ([a-z-].*)$", part)
        if found:
            # What follows `--` is the job's own command.
            yield re.split(r" -- ", found.group(1))[0]


def command_of(words: list[str]) -> tuple[Any, list[str]]:
    """The command that these words name, and the words after its name."""
    command = COMMAND
    while words and words[0] in getattr(command, "commands", ()):
        command, words = command.commands[words[0]], words[1:]
    return command, words


def options_of(command: Any) -> set[str]:
    return {one for parameter in command.params for one in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", sorted(pages()))
def test_every_option_of_a_command_that_a_page_shows_exists(page: str) -> None:
    unknown = []
    for line in shown_on(page):
        for call in calls_of_remora(line):
            command, words = command_of(re.sub(r"[\[\]]", " ", call).split())
            shown = set(OPTION.findall(" ".join(words)))
            unknown += [f"{call}: {one}" for one in sorted(shown - options_of(command) - EVERYWHERE)]
    assert unknown == []


def test_options_that_do_not_exist_are_seen() -> None:
    (call,) = calls_of_remora("J=$(remora submit -q --frob job.yaml -- train --own)")
    command, words = command_of(call.split())
    assert set(OPTION.findall(" ".join(words))) - options_of(command) == {"--frob"}


def test_every_option_of_every_command_is_on_the_page_of_the_command_line() -> None:
    page = pages()["docs/cli.md"]
    rows = [row for row in page.splitlines() if row.startswith("| `")]
    table = page.partition("## Options of submit")[2].partition("## Exit codes")[0]
    missing = []
    for name, command in walk(COMMAND, ""):
        said = " ".join(row for row in rows if f"`{name}" in row) + (table if name == "remora submit" else "")
        missing += [
            f"{name} {parameter.opts}"
            for parameter in command.params
            if parameter.param_type_name == "option"
            and not EVERYWHERE & set(parameter.opts)
            and not set(parameter.opts) & set(OPTION.findall(said))
        ]
    assert missing == []


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    if hasattr(command, "commands"):
        for word, inner in command.commands.items():
            yield from walk(inner, f"{name or 'remora'} {word}")
    else:
        yield name, command


# --- modules that are run


def runs_of_modules() -> Iterator[tuple[str, str]]:
    """Module and options of every `python -m` on a page that says some."""
    for page in pages():
        # A decision may name what was rejected.
        for line in () if page.startswith("docs/decisions/") else shown_on(page):
            found = re.search(r"python -m ((?:remora|service|cluster|trainers|benchmarks)[\w.]*)(.*)", line)
            if found:
                yield found.group(1), found.group(2)


@functools.cache
def help_of(module: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", module, "--help"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "COLUMNS": "200"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_every_module_that_a_page_runs_is_there_and_has_its_options() -> None:
    runs = set(runs_of_modules())
    assert len(runs) > 3
    for module, words in sorted(runs):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module
        shown = set(re.findall(r"(?<![\w-])--[a-z-]+", words))
        if shown:
            assert shown <= set(re.findall(r"--[a-z-]+", help_of(module))), f"{module} {words}"


def test_options_of_processes_in_the_table_of_the_settings_exist() -> None:
    rows = re.findall(r"^\| `python -m ([\w.]+)` \| (.*) \|$", pages()["docs/settings.md"], re.MULTILINE)
    assert {module for module, _ in rows} == {"service.api_process", "service.controller"}
    for module, cell in rows:
        known = set(re.findall(r"(?<![\w-])--[a-z-]+", help_of(module))) - {"--help"}
        assert set(re.findall(r"--[a-z-]+", cell)) == known, module


def test_options_of_the_node_agent_are_those_of_its_page() -> None:
    page = set(re.findall(r"^\| `(--[a-z-]+)` \|", pages()["docs/node-agent.md"], re.MULTILINE))
    assert page == set(re.findall(r"^ +(--[a-z-]+)", help_of("cluster.node.agent"), re.MULTILINE))


def test_every_exit_code_on_the_page_is_one() -> None:
    table = pages()["docs/cli.md"].partition("## Exit codes")[2]
    assert set(map(int, re.findall(r"^\| (\d+) \|", table, re.MULTILINE))) == {
        code.value for code in ExitCode
    }


def test_every_shell_command_of_a_page_can_be_split() -> None:
    for page, block in blocks("sh"):
        for line in block.replace("\\\n", " ").splitlines():
            try:
                shlex.split(line, comments=True)
            except ValueError as error:
                pytest.fail(f"{page}: {line}: {error}")
