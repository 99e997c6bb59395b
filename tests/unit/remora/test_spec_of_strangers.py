"""Specifications that were made to cost much: every check is linear, and at most 50 problems are named."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from remora.errors import MAX_PROBLEMS, SpecError
from remora.job_commands.command_texts import words_of
from remora.job_commands.expressions import fill
from remora.job_formats import translate
from remora.spec.bounds import exceeds, has_more_values
from remora.spec.problems import MAX_DEPTH, MAX_VALUES, read_yaml
from remora.spec.spec import MAX_SPEC_BYTES, JobSpec
from tests.steps import grows_linearly, steps_of, stopped_after

LIMIT = MAX_SPEC_BYTES


def judged(raw: dict[str, Any]) -> None:
    """Make a specification of it, whatever comes of that; a refusal is never long."""
    refused = _refusal(lambda: JobSpec.from_mapping({"command": "true", **raw}))
    assert len(refused.problems) <= MAX_PROBLEMS
    assert len(str(refused)) < 40_000


def read(text: str) -> None:
    """Read it as YAML, whatever comes of that; a refusal is never long."""
    assert len(str(_refusal(lambda: read_yaml(text, LIMIT)))) < 1000


def _refusal(work: Callable[[], object]) -> SpecError:
    try:
        work()
    except SpecError as error:
        return error
    return SpecError([])


MAPPINGS = {
    "unknown keys": lambda n: {f"workerz{i}": 1 for i in range(n)},
    "unknown keys of a section": lambda n: {"workers": {f"minn{i}": 1 for i in range(n)}},
    "unknown keys of a long section": lambda n: {"outputs": {"x" * 1000: {f"k{i}": 1 for i in range(n)}}},
    "keys that are no texts": lambda n: {"environment": {"variables": dict.fromkeys(range(n), "1")}},
    "values that are no texts": lambda n: {"environment": {"variables": {f"V{i}": i for i in range(n)}}},
    "variables": lambda n: {"environment": {"variables": {f"V{i}": "${{job.id}}" for i in range(n)}}},
    "requirements": lambda n: {"environment": {"pip": [f"package{i}==1.*" for i in range(n)]}},
    "a requirement": lambda n: {"environment": {"pip": ["x" * n]}},
    "outputs": lambda n: {"outputs": {f"o{i}": {"path": f"p/{i}", "model": f"m{i}"} for i in range(n)}},
    "words": lambda n: {"command": ["python"] * n},
    "a word": lambda n: {"command": ["x" * n]},
    "options of a launcher": lambda n: {"command": ["torchrun", *["--standalone"] * n, "train.py"]},
    "a shell's line": lambda n: {"command": ["bash", "-c", "env " * n + "torchrun"]},
    "shells in shells": lambda n: {"command": ["bash", "-c", "bash -c " * n + "torchrun"]},
    "expressions": lambda n: {"command": ["${{ job.id }}"] * n},
    "open expressions": lambda n: {"command": ["${{" * n]},
    "a command of backslashes": lambda n: {"command": "\\\\" * n},
    "a command of quotes": lambda n: {"command": "a''" * n},
    "a list of lists": lambda n: {"command": [["x"]] * n},
    "pools": lambda n: {"placement": {"pools": [f"p{i}" for i in range(n)]}},
}


@pytest.mark.parametrize("made", MAPPINGS.values(), ids=MAPPINGS.keys())
def test_a_specification_is_judged_in_steps_that_grow_with_it(made: Any) -> None:
    assert grows_linearly(lambda n: steps_of(lambda: judged(made(n))), 400)


YAML = {
    "keys": lambda n: "".join(f"k{i}: [1, 2]\n" for i in range(n)),
    "a doubled key": lambda n: "".join(f"k{i}: 1\n" for i in range(n)) + "k0: 1\n",
    "depth": lambda n: "[" * n,
    "blocks": lambda n: "".join(" " * min(i, 60) + "k:\n" for i in range(n)),
    "flow keys": lambda n: "{" + "? " * n,
    "anchors": lambda n: "".join(f"k{i}: &a{i} 1\n" for i in range(n)),
    "aliases": lambda n: "a: &a [1]\nb: [" + "*a, " * n + "]\n",
    "merge keys": lambda n: "a: &a {x: 1}\nb:\n" + "".join(f"  k{i}: {{<<: *a}}\n" for i in range(n)),
    "one big merge": lambda n: "a: &a {x: 1}\nb: {<<: [" + "*a, " * n + "]}\n",
    "a long scalar": lambda n: "x" * n,
    "a number of base 60": lambda n: "a: 1" + ":59" * n,
    "a long number": lambda n: "a: " + "9" * n,
    "a long number of base 16": lambda n: "a: 0x" + "f" * n,
    "underscores": lambda n: "a: 1" + "_" * n,
    "backslashes": lambda n: 'a: "' + "\\\\" * n + '"',
    "comments": lambda n: "#\n" * n,
    "dashes": lambda n: "- " * n,
    "tags": lambda n: "!" * n,
}


@pytest.mark.parametrize("made", YAML.values(), ids=YAML.keys())
def test_yaml_is_read_in_steps_that_grow_with_it(made: Any) -> None:
    assert grows_linearly(lambda n: steps_of(lambda: read(made(n))), 400)


@pytest.mark.parametrize("made", [*MAPPINGS.values()], ids=MAPPINGS.keys())
def test_what_c_does_for_a_specification_ends(made: Any) -> None:
    raw = made(20_000)
    with stopped_after(20.0):
        judged(raw)


@pytest.mark.parametrize("made", YAML.values(), ids=YAML.keys())
def test_what_c_does_for_yaml_ends(made: Any) -> None:
    text = made(80_000)[:LIMIT]
    with stopped_after(20.0):
        read(text)


@pytest.mark.parametrize("blank", [" ", "\t", "\n", "\u2003"])
def test_an_open_expression_costs_no_more_than_its_length(blank: str) -> None:
    text = "${{" + blank * 30_000
    with stopped_after(5.0):
        JobSpec.from_mapping({"command": ["python", text]})
        assert fill(text, {}, "out") == text
        translate({"$schema": "azureml/commandJob.schema.json", "command": f"python x {text}"}, None)  # type: ignore[arg-type]


def test_a_script_s_name_is_found_in_a_long_word() -> None:
    word = "a." * 60_000
    with stopped_after(5.0):
        found = translate({"$schema": "azureml/commandJob.schema.json", "command": f"x | {word}"}, None)  # type: ignore[arg-type]
    assert found is not None
    assert "name" not in found.spec


def test_more_problems_than_anybody_reads_are_not_all_named() -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.from_mapping({"command": "true", **{f"k{i}": 1 for i in range(1000)}})
    problems = refused.value.problems
    assert len(problems) == MAX_PROBLEMS == 50
    assert str(problems[0]).startswith("k0: unknown key")
    assert str(problems[-1]) == "there are more problems than these; repair them and try again"


def test_fifty_problems_are_all_named() -> None:
    with pytest.raises(SpecError) as refused:
        JobSpec.from_mapping({"command": "true", **{f"k{i}": 1 for i in range(MAX_PROBLEMS)}})
    assert [problem.field for problem in refused.value.problems] == [f"k{i}" for i in range(MAX_PROBLEMS)]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: " + "[" * (MAX_DEPTH + 1), "nested too deeply"),
        ("a: &a [" + "x, " * 400 + "]\nb: &b [" + "*a, " * 400 + "]\nc: [*b, *b]", f"more than {MAX_VALUES}"),
        ("a: &a [*a]", "stands inside what it means"),
        ("a: *b", "undefined alias"),
        ("a: {<<: {x: 1}, <<: {y: 1}}", "is there twice"),
        ("a: 1\na: 2", "the key 'a' is there twice (line 2, column 1)"),
        ("a: 1" + ":59" * 300, "a number of more than"),
    ],
)
def test_yaml_that_means_too_much_is_refused_in_a_sentence(text: str, sentence: str) -> None:
    with pytest.raises(SpecError, match=r"^[^\n]*$") as refused:
        read_yaml(text, LIMIT)
    assert sentence in str(refused.value)


@pytest.mark.parametrize(
    "data", [{"a": [1] * 20}, {str(i): i for i in range(20)}, [[1, 2]] * 10, {"a": {"b": [[]] * 20}}]
)
def test_values_are_counted_before_they_are_looked_at(data: Any) -> None:
    assert exceeds(data, values=19, characters=1000) == "more than 19 values"
    assert exceeds(data, values=60, characters=1000) is None


@pytest.mark.parametrize("data", ["x" * 2000, {"x" * 2000: 1}, [{"a": "x" * 1000}, "x" * 1000]])
def test_characters_are_counted_before_they_are_looked_at(data: Any) -> None:
    assert exceeds(data, values=19, characters=1024) == "more than 1 KiB"
    assert exceeds(data, values=19, characters=2048) is None


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
        max_leaves=12,
    )
)
def test_exactly_as_much_as_the_bounds_allow_is_taken(data: Any) -> None:
    values, characters = counted(data)
    assert exceeds(data, values=values, characters=characters) is None
    assert exceeds(data, values=values - 1, characters=characters) == f"more than {values - 1} values"
    if characters:
        assert exceeds(data, values=values, characters=characters - 1) == "more than 0 KiB"


def counted(data: Any) -> tuple[int, int]:
    """Values in the data, itself included, and characters, those of keys included."""
    match data:
        case str():
            return 1, len(data)
        case dict():
            inner, keys = list(map(counted, data.values())), sum(map(len, data))
        case list():
            inner, keys = list(map(counted, data)), 0
        case _:
            return 1, 0
    return 1 + sum(one for one, _ in inner), keys + sum(one for _, one in inner)


def test_a_value_that_holds_itself_is_counted_until_it_is_too_much() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert exceeds(endless, values=100, characters=10) == "more than 100 values"


@pytest.mark.parametrize(
    "data",
    [
        [1] * 40,
        [[]] * 40,
        [{}] * 40,
        {"a": {str(number): 1 for number in range(40)}},
        [[[7, 7]] * 30, "a"],
        ["a\\", '"', *"b" * 40],
        ["a" * number for number in range(40)],
    ],
)
def test_values_of_json_are_counted_before_they_are_parsed(data: Any) -> None:
    text = json.dumps(data).encode()
    assert has_more_values(text, 20)
    assert not has_more_values(text, 100)


@pytest.mark.parametrize(
    "text", [",,,,\\", 'a,",",",', '\\",\\\\",', '\\\\\\",' * 9, "[,{,", '\n,\t,"', "é,\u2028,", "", ","]
)
def test_commas_in_strings_are_no_values(text: str) -> None:
    data = {"document": text, text: [text, text]}
    for is_ascii in (True, False):
        assert not has_more_values(json.dumps(data, ensure_ascii=is_ascii).encode(), 4)
        assert has_more_values(json.dumps([data, data], ensure_ascii=is_ascii).encode(), 4)


def test_many_strings_are_many_values() -> None:
    # Whatever stands between them.
    assert has_more_values(b'"a" ' * 40, 10)
    assert not has_more_values(json.dumps({str(number): "a" for number in range(11)}).encode(), 11)
    assert grows_linearly(lambda size: steps_of(lambda: has_more_values(b'"\\",' * size, 10)), 1000)


def test_so_many_values_are_wrong_that_none_is_named() -> None:
    with pytest.raises(SpecError, match=r"^2000 values are wrong; begin with a small specification$"):
        JobSpec.from_mapping({"command": "true", **{f"k{i}": 1 for i in range(2000)}})


def test_a_command_longer_than_a_specification_is_not_split() -> None:
    with pytest.raises(SpecError, match=r"^more than 256 KiB; put the data into files$"):
        JobSpec.from_mapping({"command": "x" * (LIMIT + 1)})


@given(st.text(alphabet=" ab\t\r\n'\"\\#$\u2003\u00e9;|", max_size=24))
@example('a\'b\'"c\\"d\\e" \\\n \'\' ""')
def test_a_command_line_is_split_as_the_standard_library_does(text: str) -> None:
    try:
        expected = shlex.split(text)
    except ValueError as error:
        with pytest.raises(ValueError, match=str(error)):
            words_of(text)
    else:
        assert words_of(text) == expected
