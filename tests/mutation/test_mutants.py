"""Which faults are put into a source, and what becomes of one that tests see, and of one that they do not."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT, sources
from tests.mutation.__main__ import drawn, summary
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.targets import TARGETS, Target, sources_of
from tests.mutation.trial import Copy, TestsFail

TEXTS = dict(sources("remora", "service", "cluster", "trainers"))


def faulty(text: str) -> list[str]:
    """The source with each of its faults."""
    return [one.put_into(text) for one in mutants_of("one.py", text)]


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("a < b", ["a <= b"]),
        ("a is not None", ["a is None"]),
        ("(a) not in (b)", ["(a) in (b)"]),
        ("a and b", ["a or b"]),
        ("not a", ["(a)"]),
        ("a + b", ["a - b"]),
        ("a - (1 - b)", ["a + (1 - b)", "a - (2 - b)", "a - (1 + b)"]),
        ("x = True", ["x = False"]),
        ("x = 0.5", ["x = 1.5"]),
        ("a if b else c", ["a if (not (b)) else c"]),
        ("[a for a in b if a]", ["[a for a in b if (not (a))]"]),
        ("a if not b else c", ["a if (b) else c"]),
        ("a if b == c else d", ["a if b != c else d"]),
        ("while a:\n    continue", ["while (not (a)):\n    continue", "while a:\n    break"]),
        ("x += y", ["pass"]),
        ("do(x)", ["pass"]),
        ("x = min(y)", ["x = max(y)"]),
        ("x = replace(y, a=b, c=d)", ["x = replace(y,  c=d)", "x = replace(y, a=b, )"]),
        ("TABLE = (f(3),)", ["TABLE = (f(4),)"]),
        ("x: int = field(default=3)", ["x: int = field(default=4)"]),
        ("x = f(strict=True)", ["x = f(strict=False)"]),
        ("é = a < b", ["é = a <= b"]),
    ],
)
def test_each_kind_of_fault_is_put_in(text: str, faults: list[str]) -> None:
    assert faulty(text) == faults


@pytest.mark.parametrize(
    "text",
    [
        '"""Of 3 words."""',
        "log.info('%d', 3)",
        "assert a < 3",
        "raise ValueError(3)",
        "x: Literal[3] = y",
        "x = f'{3}'",
        "x = 'a' + b",
        "@property(3)\nclass A(B[3]):\n    c: int",
        "if TYPE_CHECKING:\n    x = 3",
        "_MOST_S = 10 * MINUTE_S",
        "_PAUSE_S, _MOST_S = 5.0, -1",
        "x = zip(a, b, strict=True)",
        "x: int = field(init=False, repr=False, compare=False, default=y)",
    ],
)
def test_what_is_only_said_is_left_alone(text: str) -> None:
    assert faulty(text) == []


def test_all_faults_of_all_targets_can_be_compiled_and_change_something() -> None:
    for path in sources_of(TEXTS)["checkpoints"]:
        for mutant in mutants_of(path, TEXTS[path]):
            text = mutant.put_into(TEXTS[path])
            assert text != TEXTS[path]
            assert mutant.compiles(TEXTS[path])
            assert str(mutant).startswith(f"{path}:{mutant.line}: ")


def test_what_python_does_not_take_is_not_drawn() -> None:
    wrong = Mutant("one.py", 0, 1, ")", "x", 1)
    assert not wrong.compiles("x = 1")


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_target_has_its_modules_and_tests(target: Target) -> None:
    assert [one for one in (*target.modules, *target.tests) if not (ROOT / one).exists()] == []
    assert sources_of(TEXTS)[target.name]


def test_a_seed_draws_the_same_faults_again_and_another_one_others() -> None:
    names = ["checkpoints"]
    first = drawn(1, 10, TEXTS, names)
    assert first == drawn(1, 10, TEXTS, names)
    assert len({mutant for _, mutant in first}) == 10
    assert first != drawn(2, 10, TEXTS, names)
    assert {target.name for target, _ in first} == {"checkpoints"}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one module, which has tests that see one of its two faults, and one without an end."""
    tree = tmp_path / "tree"
    (tree / "tests/mutation").mkdir(parents=True)
    (tree / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow']\n")
    for name in ("__init__.py", "profile.py"):
        (tree / "tests/mutation" / name).write_bytes((ROOT / "tests/mutation" / name).read_bytes())
    (tree / "one.py").write_text(
        "def seen(a, b):\n    return a < b\n\n\ndef unseen(a, b):\n    return a - b\n\n\n"
        "def count(a):\n    while a > 0:\n        a -= 1\n    return a\n"
    )
    (tree / "test_one.py").write_text(
        "import one\n\n\ndef test_one():\n    assert not one.seen(2, 2)\n    assert one.unseen(2, 0) == 2\n"
        "    assert one.count(3) == 0\n"
    )
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    return tree


def test_faults_are_seen_or_not_and_the_tree_stays_as_it_is(tree: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*.py")}
    copy = Copy.make(tree, tmp_path / "copy")
    assert copy.measure(["test_one.py"], 60.0) > 0.0
    mutants = {one.after: one for one in mutants_of("one.py", (tree / "one.py").read_text())}
    outcomes = {
        after: copy.try_out(mutants[after], ["test_one.py"], limit_s)
        for after, limit_s in (("<=", 60.0), ("+", 60.0), ("pass", 5.0))
    }
    assert outcomes == {"<=": "killed", "+": "survived", "pass": "killed"}
    assert copy.run(["test_one.py"], 60.0) == "survived", "the copy is right again"
    assert {path: path.read_bytes() for path in tree.rglob("*.py")} == before


def test_a_fault_that_keeps_pytest_from_starting_is_seen(tree: Path, tmp_path: Path) -> None:
    (tree / "conftest.py").write_text("import one\n\nif one.seen(2, 2):\n    raise ImportError('2 < 2')\n")
    copy = Copy.make(tree, tmp_path / "copy")
    copy.measure(["test_one.py"], 60.0)
    (wrong,) = [one for one in mutants_of("one.py", (tree / "one.py").read_text()) if one.after == "<="]
    assert copy.try_out(wrong, ["test_one.py"], 60.0) == "killed"


def test_tests_that_fail_by_themselves_say_nothing_about_faults(tree: Path, tmp_path: Path) -> None:
    (tree / "test_one.py").write_text("def test_one():\n    assert False\n")
    copy = Copy.make(tree, tmp_path / "copy")
    with pytest.raises(TestsFail, match="tests fail without any fault"):
        copy.measure(["test_one.py"], 60.0)
    with pytest.raises(TestsFail, match="pytest ended with 4"):
        copy.run(["test_none.py"], 60.0)


def test_what_is_stopped_ends_and_its_fault_is_taken_out_again(tree: Path, tmp_path: Path) -> None:
    (tree / "test_one.py").write_text(
        "import pathlib\nimport one\n\n\ndef test_one():\n    pathlib.Path('begun').touch()\n    one.count(3)\n"
    )
    copy = Copy.make(tree, tmp_path / "copy")
    (endless,) = [one for one in mutants_of("one.py", (tree / "one.py").read_text()) if one.after == "pass"]
    raised: list[BaseException] = []

    def try_out() -> None:
        try:
            copy.try_out(endless, ["test_one.py"], 60.0)
        except TestsFail as error:
            raised.append(error)

    trial = threading.Thread(target=try_out)
    trial.start()
    while not (copy.root / "begun").exists() and trial.is_alive():
        trial.join(0.01)
    copy.stop()
    trial.join(30.0)
    assert not trial.is_alive()
    assert (copy.root / "one.py").read_bytes() == (tree / "one.py").read_bytes()
    with pytest.raises(TestsFail, match="nothing is tried any more"):
        copy.run(["test_one.py"], 60.0)


def test_the_score_is_printed_for_each_target_with_what_was_not_seen() -> None:
    first, second = TARGETS[:2]
    left = Mutant("a.py", 0, 1, ">", "<", 7)
    chosen = [
        (first, Mutant("a.py", 5, 6, "1", "0", 9)),
        (first, left),
        (second, Mutant("b.py", 5, 6, "1", "0", 9)),
    ]
    assert summary(chosen, ["killed", "survived", "killed"]) == [
        "planning           1 of    2 seen     50 %",
        "policies           1 of    1 seen    100 %",
        "all                2 of    3 seen     67 %",
        "",
        "seen by no test:",
        "a.py:7: < -> >",
    ]
