"""Rules for the sources that no linter knows: who may import whom, words that must not stand in the repository."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.architecture.repository import PACKAGES, ROOT, sources, texts, tree_of

#: Names that say nothing about what a module does.
EMPTY_NAMES = re.compile(r"(^|_)(manager|helpers?|utils?|common|handlers?|processors?|base|misc)(_|$)")
HOSTS = re.compile(r"pypi[.]org|pythonhosted[.]org|download[.]pytorch|anaconda[.]org|huggingface[.]co")
#: What comes before the first statement, and a string that is it.
DOCSTRING = re.compile(r"""(\s|#.*\n)*r?('{3}|"{3}|["'])\s*[^"'\s]""")
MACHINE_PATHS = re.compile(r"(?<![\w.])/(?:work|root|home|Users)/\w")


def test_imports_go_one_way() -> None:
    program = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([str(program), "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_module_says_what_it_is_for() -> None:
    silent = [
        name
        for name, text in sources(*PACKAGES, "tests", "benchmarks").items()
        if text.strip() and not DOCSTRING.match(text)
    ]
    assert silent == []


def test_no_module_or_class_has_a_name_that_says_nothing() -> None:
    empty = []
    for name in sources(*PACKAGES):
        classes = [node.name for node in ast.walk(tree_of(name)) if isinstance(node, ast.ClassDef)]
        words = [Path(name).stem, *(re.sub(r"(?<!^)(?=[A-Z])", "_", one).lower() for one in classes)]
        empty += [f"{name}: {word}" for word in words if EMPTY_NAMES.search(word)]
    assert empty == []


def test_no_file_names_a_package_host_or_a_path_of_one_machine() -> None:
    found = [
        f"{name}: {match.group()}"
        for name, text in texts().items()
        for pattern in (HOSTS, MACHINE_PATHS)
        for match in pattern.finditer(text)
    ]
    assert found == []


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5 matches such a group wrongly when it has alternatives (cpython issue 106052)."""
    found = [name for name, text in sources(*PACKAGES).items() if re.search(r"\)[*+?}]\+", text)]
    assert found == []


def test_nothing_is_left_unfinished() -> None:
    marks = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b|pytest[.]mark[.]xfail")
    own = Path(__file__).relative_to(ROOT).as_posix()
    found = [
        f"{name}: {match.group()}"
        for name, text in texts().items()
        if name != own
        for match in marks.finditer(text)
    ]
    assert found == []


def test_no_two_test_files_have_one_name() -> None:
    """Folders of tests are no packages, so pytest refuses a second file of a name, but only when both are collected."""
    names = Counter(name.rsplit("/", 1)[1] for name in sources("tests") if "/test_" in name)
    twice = sorted(name for name, times in names.items() if times > 1)
    assert not twice, "test files with the same name as another: " + ", ".join(twice)
