"""Which faults are put into a source, and what becomes of one that tests see, and of one that they do not."""

from __future__ import annotations

import runpy
import subprocess
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.architecture.repository import ROOT, sources
from tests.mutation.__main__ import Outcomes, drawn, summary, try_target
from tests.mutation.copies import Copy, Measured, TestsFail
from tests.mutation.mutants import Mutant, function_of, mutants_of
from tests.mutation.resident import replace_code
from tests.mutation.targets import TARGETS, Target, sources_of

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
        ("x = names[:3]", ["x = names[:4]"]),
        ("x = names[80:]", ["x = names[81:]"]),
        # Sum and difference are both even, or both odd.
        ("x = (a + b) % 2", ["x = (a + b) * 2", "x = (a + b) % 3"]),
        ("x = (a + b) % c", ["x = (a - b) % c", "x = (a + b) * c"]),
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
        "x = text[:200]",
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


def test_what_is_held_to_be_pure_is_mutated() -> None:
    """All but a table of figures."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    names = ("pure modules touch nothing", "a replay touches nothing but its trace")
    pure = {
        module.replace(".", "/")
        for contract in contracts
        if contract["name"] in names
        for module in contract["source_modules"]
    }
    mutated = set().union(*sources_of(TEXTS).values())
    left_out = {
        path
        for path in TEXTS
        if any(path == f"{one}.py" or path.startswith(f"{one}/") for one in pure) and path not in mutated
    }
    assert left_out == {"cluster/azure/catalogue.py"}


def test_a_seed_draws_the_same_faults_again_and_another_one_others() -> None:
    names = ["checkpoints"]
    first = drawn(1, 10, TEXTS, names)
    assert first == drawn(1, 10, TEXTS, names)
    assert len({mutant for _, mutant in first}) == 10
    assert first != drawn(2, 10, TEXTS, names)
    assert {target.name for target, _ in first} == {"checkpoints"}


@pytest.mark.parametrize(
    ("faulty", "home"),
    [
        ("a - b", ("outer", 4)),
        ("c - d", ("One.method", 13)),
        ("e - f", ("outer", 4)),
        ("7", None),
        ("8", None),
        ("9", None),
    ],
)
def test_a_fault_belongs_to_the_outermost_function_in_whose_body_it_is(
    faulty: str, home: tuple[str, int] | None
) -> None:
    """Defaults and decorators are computed before the function exists."""
    text = (
        "TABLE = f(7)\n\n\n"
        "def outer(a, b=8):\n    def inner(e, f):\n        return e - f\n\n    return a - b\n\n\n"
        "class One:\n\n    @decorated(9)\n    def method(c, d):\n        return c - d\n"
    )
    start = text.encode().index(faulty.encode())
    assert function_of(Mutant("one.py", start, start + 1, "", "", 1), text) == home


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository with one module, which has tests that see one of its two faults, and one without an end."""
    tree = tmp_path / "tree"
    (tree / "tests/mutation").mkdir(parents=True)
    (tree / "pyproject.toml").write_text("[tool.pytest.ini_options]\nmarkers = ['slow']\n")
    for name in ("__init__.py", "mutants.py", "profile.py", "resident.py"):
        (tree / "tests/mutation" / name).write_bytes((ROOT / "tests/mutation" / name).read_bytes())
    (tree / "one.py").write_text(
        "def seen(a, b):\n    return a < b\n\n\ndef unseen(a, b):\n    return a - b\n\n\n"
        "def count(a):\n    while a > 0:\n        a -= 1\n    return a\n"
    )
    (tree / "test_one.py").write_text(
        "import one\n\n\ndef test_seen():\n    assert not one.seen(2, 2)\n\n\n"
        "def test_others():\n    assert one.unseen(2, 0) == 2\n    assert one.count(3) == 0\n"
    )
    subprocess.run(["git", "init", "-q", str(tree)], check=True)
    return tree


@pytest.fixture
def copy(tree: Path, tmp_path: Path) -> Iterator[Copy]:
    copy = Copy.make(tree, tmp_path / "copy")
    yield copy
    copy.stop()


TESTS = ["test_one.py"]


def faults(tree: Path, path: str = "one.py") -> dict[str, Mutant]:
    """The faults of a module, by what they put in."""
    return {one.after: one for one in mutants_of(path, (tree / path).read_text())}


def test_faults_are_seen_or_not_and_the_tree_stays_as_it_is(tree: Path, copy: Copy) -> None:
    before = {path: path.read_bytes() for path in tree.rglob("*.py")}
    measured = copy.measure(TESTS, faults(tree).values(), 60.0)
    outcomes = {
        after: copy.try_out(faults(tree)[after], TESTS, measured, limit_s)
        for after, limit_s in (("<=", 60.0), ("+", 60.0), ("pass", 2.0))
    }
    assert outcomes == {"<=": "killed", "+": "survived", "pass": "killed"}
    assert copy.run(TESTS, 60.0) == "survived", "the copy is right again"
    assert {path: path.read_bytes() for path in tree.rglob("*.py")} == before


def test_what_enters_a_function_is_known_and_comes_in_the_order_of_its_time(tree: Path, copy: Copy) -> None:
    measured = copy.measure(TESTS, faults(tree).values(), 60.0)
    assert not {"one.py:1:seen", "one.py:5:unseen"} & measured.at_import
    assert list(measured.entering("one.py:5:unseen")) == ["test_one.py::test_others"]
    assert list(measured.entering("one.py:1:seen")) == ["test_one.py::test_seen"]
    assert list(measured.tests) == ["test_one.py::test_others", "test_one.py::test_seen"], "in reverse"
    both = {"slow": (2.0, ["f", "g"]), "quick": (1.0, ["f"])}
    assert list(Measured(3.0, frozenset(), both).entering("f")) == ["quick", "slow"]


@pytest.mark.parametrize(
    ("module", "test"),
    [
        ("def two():\n    return 1 < 1\n\n\nTWO = two()\n", "assert not two.TWO"),
        ("TWO = (1 < 1,)\n", "assert two.TWO == (False,)"),
        ("def two(is_strict=1 < 1):\n    return is_strict\n", "assert not two.two()"),
        ("class Two:\n    @property\n    def two(self):\n        return 1 < 1\n", "assert not two.Two().two"),
        ("def two():\n    def inner():\n        return 1 < 1\n    return inner\n", "assert not two.two()()"),
        (
            "import functools\n\n\n@functools.cache\ndef two():\n    return 1 < 1\n",
            "assert not two.two()",
        ),
        (
            "def two():\n    return 1 < 1\n",
            "import subprocess, sys\n    code = 'import two, sys; sys.exit(two.two())'\n"
            "    assert subprocess.run([sys.executable, '-c', code]).returncode == 0",
        ),
    ],
    ids=["at import", "outside of functions", "default", "property", "inner", "cached", "other process"],
)
def test_a_fault_is_seen_wherever_it_is(tree: Path, copy: Copy, module: str, test: str) -> None:
    for root in (tree, copy.root):
        (root / "two.py").write_text(module)
        (root / "test_two.py").write_text(f"import two\n\n\ndef test_two():\n    {test}\n")
    measured = copy.measure(["test_two.py"], mutants_of("two.py", module), 60.0)
    found = [one for one in mutants_of("two.py", module) if one.after == "<="]
    assert [copy.try_out(one, ["test_two.py"], measured, 60.0) for one in found] == ["killed"]


def test_a_function_that_gets_other_variables_is_tried_in_another_process(tmp_path: Path) -> None:
    """Code cannot be replaced where it refers to other cells, or where nothing was made from that place."""
    path = tmp_path / "made.py"
    path.write_text("def outer(a):\n    def two():\n        return a\n    return two\n")
    outer = runpy.run_path(str(path))["outer"]
    inner = outer(1)
    text = "def outer(a):\n    def two():\n        return 2\n    return two\n"
    assert not replace_code("other.py", 1, "outer", text)
    assert not replace_code(str(path), 1, "inner", text)
    assert not replace_code(str(path), 2, "outer.<locals>.two", text)
    assert replace_code(str(path), 1, "outer", text)
    assert (inner(), outer(1)()) == (1, 2)


def test_a_fault_that_keeps_pytest_from_starting_is_seen(tree: Path, copy: Copy) -> None:
    (copy.root / "conftest.py").write_text(
        "import one\n\nif one.seen(2, 2):\n    raise ImportError('2 < 2')\n"
    )
    measured = copy.measure(TESTS, faults(tree).values(), 60.0)
    assert "one.py:1:seen" in measured.at_import
    assert copy.try_out(faults(tree)["<="], TESTS, measured, 60.0) == "killed"


def test_tests_that_fail_by_themselves_say_nothing_about_faults(copy: Copy) -> None:
    (copy.root / "test_one.py").write_text("def test_one():\n    assert False\n")
    with pytest.raises(TestsFail, match="tests fail without any fault"):
        copy.measure(TESTS, [], 60.0)
    with pytest.raises(TestsFail, match="pytest ended with 4"):
        copy.run(["test_none.py"], 60.0)
    with pytest.raises(TestsFail, match="tests cannot be collected"):
        copy.measure(["test_none.py"], [], 60.0)


def test_a_target_whose_tests_fail_by_themselves_keeps_no_other_one_from_being_tried(
    tree: Path, copy: Copy
) -> None:
    (copy.root / "test_bad.py").write_text("def test_bad():\n    assert False\n")
    outcomes: Outcomes = {}
    mutant = faults(tree)["<="]
    bad, good = (Target(name, ("one.py",), (f"test_{name}.py",)) for name in ("bad", "one"))
    assert "fail without any fault" in try_target(copy, bad, [mutant], outcomes)
    assert outcomes == {}
    assert try_target(copy, good, [mutant], outcomes) == ""
    assert outcomes == {(good, mutant): "killed"}


def test_a_process_that_ends_while_it_serves_says_nothing_about_faults(tree: Path, copy: Copy) -> None:
    (copy.root / "test_one.py").write_text(
        "import os\nimport signal\nimport one\n\n\n"
        "def test_one():\n    one.count(0)\n    os.kill(os.getppid(), signal.SIGKILL)\n"
    )
    where = "one.py:9:count"
    measured = Measured(1.0, frozenset(), {"test_one.py::test_one": (1.0, [where])})
    with pytest.raises(TestsFail, match="has ended"):
        copy.try_out(faults(tree)["pass"], TESTS, measured, 60.0)


@pytest.mark.parametrize("is_resident", [True, False])
def test_what_is_stopped_ends_and_its_fault_is_taken_out_again(
    tree: Path, copy: Copy, is_resident: bool
) -> None:
    where = "one.py:9:count"
    at_import = frozenset() if is_resident else frozenset({where})
    measured = Measured(1.0, at_import, {"test_one.py::test_one": (1.0, [where])})
    (copy.root / "test_one.py").write_text(
        "import pathlib\nimport one\n\n\ndef test_one():\n    pathlib.Path('begun').touch()\n    one.count(3)\n"
    )
    raised: list[BaseException] = []

    def try_out() -> None:
        try:
            copy.try_out(faults(tree)["pass"], TESTS, measured, 60.0)
        except TestsFail as error:
            raised.append(error)

    trial = threading.Thread(target=try_out)
    trial.start()
    while not (copy.root / "begun").exists() and trial.is_alive():
        trial.join(0.01)
    copy.stop()
    trial.join(30.0)
    assert not trial.is_alive()
    assert len(raised) == 1
    assert (copy.root / "one.py").read_bytes() == (tree / "one.py").read_bytes()
    with pytest.raises(TestsFail, match="nothing is tried any more"):
        copy.run(TESTS, 60.0)


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
