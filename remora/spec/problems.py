"""Sentences for what YAML and pydantic complain about: the field, the value, what was expected.

Pure, but for `read_yaml` opening the file that its caller names.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import yaml
from pydantic import BaseModel, ValidationError

from remora.errors import SpecError, SpecProblem

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

#: Characters of each key in a problem's field.
LONGEST_KEY = 200
#: Errors that pydantic is asked for: it returns all or none, and all at once.
MOST_ERRORS = 1000
#: Levels of a YAML text, and values in it, those that stand behind an alias counted each time.
MAX_DEPTH = 32
MAX_VALUES = 100_000
#: Characters of a number in YAML; Python's own limit for decimal digits does not hold for every base.
_LONGEST_NUMBER = 400
_NUMBERS = frozenset({"tag:yaml.org,2002:int", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp"})
#: libyaml's parser where PyYAML has it: ten times as fast.
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60
_SHORT.maxlevel = 2


def problems_of(error: ValidationError, model: type[BaseModel]) -> Iterator[SpecProblem]:
    """One problem for each of pydantic's errors, in the order of the fields, made when it is asked for."""
    if (count := error.error_count()) > MOST_ERRORS:
        return iter([SpecProblem("", f"{count} values are wrong; begin with a small specification")])
    return (_problem(detail, model) for detail in error.errors(include_url=False))


def _problem(detail: ErrorDetails, model: type[BaseModel]) -> SpecProblem:
    path = [str(part)[:LONGEST_KEY] for part in detail["loc"] if part != "[key]"]
    field = ".".join(path)
    kind = detail["type"]
    if kind == "extra_forbidden":
        return SpecProblem(field, f"unknown key{_nearest(path, model)}")
    if kind == "invalid_key":
        return SpecProblem(field, "keys must be texts; put quotes around it")
    expected = f"expected {_expected(path, model)}"
    if kind == "missing":
        return SpecProblem(field, f"missing; {expected}")
    if kind == "value_error":
        own = str(detail.get("ctx", {}).get("error", ""))
        if own and not own.startswith("expected"):
            return SpecProblem(field, own)
        expected = own or expected
    return SpecProblem(field, f"{short(detail['input'])} given, {expected}")


def short(value: object) -> str:
    """The value for people, never long, whatever it is."""
    if value is None:
        return "nothing"
    try:
        return _SHORT.repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits has no decimal text
        return "a value"


def _expected(path: list[str], model: type[BaseModel]) -> str:
    """Description of the deepest described field on the path."""
    expected = "a job specification"
    current: type[BaseModel] | None = model
    for part in path:
        field = current.model_fields.get(part) if current is not None else None
        if field is None:
            break
        expected = field.description or expected
        current = section_of(field.annotation)
    return expected


def section_of(annotation: object) -> type[BaseModel] | None:
    """The section that a field of this type is, or may be."""
    for one in (annotation, *get_args(annotation)):
        if isinstance(one, type) and issubclass(one, BaseModel):
            return one
    return None


def _nearest(path: list[str], model: type[BaseModel]) -> str:
    """A suggestion for an unknown key: the same word elsewhere, or the nearest word in the same section."""
    known: tuple[str, ...] = getattr(model, "known_fields", ())
    *section, word = path
    elsewhere = [name for name in known if name.rpartition(".")[2] == word]
    if elsewhere:
        return f"; did you mean {elsewhere[0]}?"
    prefix = "".join(f"{part}." for part in section)
    siblings = [name[len(prefix) :] for name in known if name.startswith(prefix)]
    siblings = [name for name in siblings if "." not in name]
    near = difflib.get_close_matches(word[:80].lower(), siblings, n=1, cutoff=0.5)
    if near:
        return f"; did you mean {prefix}{near[0]}?"
    return f"; known are {', '.join(siblings)}"


def read_yaml(source: str | Path, limit_bytes: int) -> Any:
    """Parse YAML (or JSON) text, or the file at a `Path`.  Raises SpecError in one line, with the place."""
    where = str(source) if isinstance(source, Path) else "the specification"
    return parse_yaml(source, limit_bytes, where)[0]


def read_documents(source: str | Path, limit_bytes: int) -> list[Any]:
    """Parse every document of a YAML text or file that is not empty.  Raises SpecError in one line, with the place."""
    where = str(source) if isinstance(source, Path) else "the specification"
    return [data for data, _ in _parse_all(source, limit_bytes, where)]


def parse_yaml(source: str | Path, limit_bytes: int, where: str) -> tuple[Any, yaml.Node | None]:
    """The data of a YAML (or JSON) text or file, and the node it was made from, which knows the lines.

    Empty documents around it count for nothing.
    `where` names the text for people.  Raises SpecError in one line, with the place.
    """
    found = _parse_all(source, limit_bytes, where)
    if len(found) > 1:
        raise _refuse(f"{where} holds {len(found)} documents; write each into a file of its own")
    return found[0] if found else (None, None)


def _parse_all(source: str | Path, limit_bytes: int, where: str) -> list[tuple[Any, yaml.Node]]:
    try:
        text = _read(source, limit_bytes) if isinstance(source, Path) else source
        if len(text) > limit_bytes:
            raise _refuse(f"{where} is bigger than {limit_bytes // 1024} KiB; put the data into files")
        return _load(text, where)
    except yaml.YAMLError as error:
        raise _refuse(f"{where} is not YAML: {_one_line(error)}") from None
    except OSError as error:
        raise _refuse(f"cannot read {where}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _refuse(f"{where} is not text in UTF-8") from None
    except RecursionError:
        raise _refuse(f"{where} is nested too deeply") from None
    except ValueError as error:  # PyYAML lets e.g. the month 13 through to datetime
        raise _refuse(f"{where} holds a value that YAML cannot mean: {str(error)[:100]}") from None


def _load(text: str, where: str) -> list[tuple[Any, yaml.Node]]:
    _check_size(text, where)
    loader = _Loader(text)
    found = []
    try:
        while loader.check_node():
            node = loader.get_node()
            if (data := loader.construct_document(node)) is not None:
                found.append((data, node))
        return found
    finally:
        loader.dispose()


def _check_size(text: str, where: str) -> None:
    """Raise SpecError for a small text that is big, or deep, as data; libyaml ends the process for the latter."""
    # Of each open section the values in it so far, and its anchor; of each anchor the values that it stands for.
    open_sections: list[tuple[int, str | None]] = [(0, None)]
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, Loader=_Base):
        size = 0
        if isinstance(event, yaml.CollectionStartEvent):
            open_sections.append((1, event.anchor))
            sizes.pop(event.anchor or "", None)
            if len(open_sections) > MAX_DEPTH:
                raise RecursionError
        elif isinstance(event, yaml.CollectionEndEvent):
            size, anchor = open_sections.pop()
            sizes |= {anchor: size} if anchor else {}
        elif isinstance(event, yaml.AliasEvent):
            alias, mark = str(event.anchor), cast("yaml.Mark", event.start_mark)
            if any(anchor == alias for _, anchor in open_sections):
                problem = f"the alias {alias[:80]!r} stands inside what it means"
                raise yaml.composer.ComposerError(None, None, problem, mark)
            size = sizes.get(alias, 1)
        elif isinstance(event, yaml.ScalarEvent):
            size = 1
            sizes |= {event.anchor: 1} if event.anchor else {}
        inside, anchor = open_sections[-1]
        open_sections[-1] = (inside + size, anchor)
        if open_sections[-1][0] > MAX_VALUES:
            raise _refuse(f"{where} has more than {MAX_VALUES} values")


def read_spec_file(path: Path, limit_bytes: int) -> Any:
    """Parse a specification's file; a relative `code` becomes relative to the file's folder.  Raises SpecError."""
    raw = read_yaml(path, limit_bytes)
    return with_code_from(raw, path.resolve().parent) if isinstance(raw, dict) else raw


def with_code_from(raw: dict[Any, Any], folder: Path) -> dict[Any, Any]:
    """The same with a relative `code` taken from this folder, wherever it is read."""
    code = raw.get("code")
    if isinstance(code, str) and code and not code.startswith("sha256:"):
        return {**raw, "code": str(folder / Path(code).expanduser())}
    return raw


def _read(path: Path, limit_bytes: int) -> str:
    with path.open("rb") as file:
        return file.read(limit_bytes + 1).decode("utf-8")


def _refuse(message: str) -> SpecError:
    return SpecError([SpecProblem("", message)])


def _one_line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    place = f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "it cannot be parsed"
    return f"{' '.join(str(reason).split())[:200]}{place}"


class _Loader(_Base):  # type: ignore[misc]
    """Safe YAML that refuses a key written twice, where PyYAML would keep only the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    problem = f"the key {key.value[:80]!r} is there twice"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add((key.tag, key.value))
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if node.tag in _NUMBERS and isinstance(node.value, str) and len(node.value) > _LONGEST_NUMBER:
            problem = f"a number of more than {_LONGEST_NUMBER} characters"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_object(node, deep=deep)
