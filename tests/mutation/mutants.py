"""Small faults that can be put into a source, one at a time: each is a text in the place of another (pure)."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

_COMPARED: Mapping[type[ast.cmpop], str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
}  # fmt: skip
_COUNTED: Mapping[type[ast.operator], str] = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Mod: "*", ast.BitOr: "&",
    ast.BitAnd: "|",
}  # fmt: skip
#: Arguments that check or declare something and compute nothing.
_DECLARES: Mapping[str, frozenset[str]] = {
    "zip": frozenset({"strict"}),
    "field": frozenset({"init", "repr", "compare", "hash", "kw_only"}),
}
#: A text that is cut at this number of characters or more is cut for people to read.
_CUT = 80
_CALLED: Mapping[str, str] = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, order=True)
class Mutant:
    """One fault: bytes `start` to `end` of the source at `path` become `after`."""

    path: str
    start: int
    end: int
    after: str
    #: What stood there.
    before: str
    line: int

    def put_into(self, text: str) -> str:
        """The source with the fault."""
        raw = text.encode()
        return (raw[: self.start] + self.after.encode() + raw[self.end :]).decode()

    def compiles(self, text: str) -> bool:
        """The source with the fault is one of Python's; of few it is not, such as with `break` outside of a loop."""
        try:
            compile(self.put_into(text), self.path, "exec")
        except SyntaxError:
            return False
        return True

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {_short(self.before)} -> {_short(self.after)}"


def mutants_of(path: str, text: str) -> list[Mutant]:
    """Every fault that this module knows for a source, in order.

    What is said, logged or annotated, and a number that has a name, are left alone: no test should repeat them.  So are
    `strict` of a `zip`, which checks lengths that are equal, how a dataclass declares a `field`, where a long text is
    cut before it is shown, and whether two numbers are added or subtracted to see if the result is even.
    """
    source = _Source(path, text)
    return sorted(set(itertools.chain.from_iterable(map(source.faults_of, source.nodes()))))


def function_of(mutant: Mutant, text: str) -> tuple[str, int] | None:
    """Qualified name and first line of the outermost function in whose body the fault is; None outside of functions."""
    return _Source(mutant.path, text).function_at(mutant.start)


def first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The line that its code says it begins in: that of its first decorator, if it has any."""
    return min([function.lineno, *(one.lineno for one in function.decorator_list)])


def _short(code: str) -> str:
    words = " ".join(code.split())
    return words if len(words) <= 60 else f"{words[:57]}..."


class _Source:
    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._tree = ast.parse(text)
        self._raw = text.encode()
        lengths = [len(line) for line in self._raw.splitlines(keepends=True)]
        self._begins = [0, *itertools.accumulate(lengths)]
        #: Sums of which only the parity counts: a difference has the same.
        self._parities = {id(one.left) for one in ast.walk(self._tree) if _is_parity(one)}

    def nodes(self) -> Iterator[ast.AST]:
        """All nodes but those of annotations, docstrings, log lines, assertions, named numbers and what is raised.

        Arguments that only declare something are left out as well.
        """
        waiting: list[ast.AST] = [self._tree]
        while waiting:
            node = waiting.pop()
            if _is_left_alone(node):
                continue
            yield node
            left_out = _declared(node)
            for name, value in ast.iter_fields(node):
                if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
                    continue
                children = value if isinstance(value, list) else [value]
                waiting += [
                    child for child in children if isinstance(child, ast.AST) and child not in left_out
                ]

    def faults_of(self, node: ast.AST) -> Iterator[Mutant]:
        """Faults of one node, without those of the nodes in it."""
        match node:
            case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARED:
                yield self._between(left, right, _COMPARED[type(operator)])
            case ast.BoolOp(op=operator, values=values):
                for left, right in itertools.pairwise(values):
                    yield self._between(left, right, "or" if isinstance(operator, ast.And) else "and")
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                yield self._instead(node, f"({self._text(operand)})")
            case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _COUNTED:
                if not (_is_text(left) or _is_text(right) or id(node) in self._parities):
                    yield self._between(left, right, _COUNTED[type(operator)])
            case ast.Constant(value=bool() as value):
                yield self._instead(node, str(not value))
            case ast.Constant(value=int() | float() as value):
                yield self._instead(node, repr(value + 1))
            case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
                yield from self._negated([test])
            case ast.comprehension(ifs=tests):
                yield from self._negated(tests)
            case ast.Continue():
                yield self._instead(node, "break")
            case ast.AugAssign() | ast.Expr(value=ast.Call() | ast.Await()):
                yield self._instead(node, "pass")
            case ast.Call(func=ast.Name(id=name) as called) if name in _CALLED:
                yield self._instead(called, _CALLED[name])
            case ast.Call(func=ast.Name(id="replace"), keywords=keywords):
                yield from self._without_each(keywords)

    def function_at(self, place: int) -> tuple[str, int] | None:
        """The outermost function in whose body this byte is."""
        waiting = [(node, "") for node in self._tree.body]
        while waiting:
            node, prefix = waiting.pop()
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    start, end = self._span(node.body[0])[0], self._span(node)[1]
                    if start <= place < end:
                        return f"{prefix}{node.name}", first_line(node)
                case ast.ClassDef():
                    waiting += [(one, f"{prefix}{node.name}.") for one in node.body]
        return None

    def _negated(self, tests: Sequence[ast.expr]) -> Iterator[Mutant]:
        """The opposite of conditions, but for those that another fault turns around already."""
        for test in tests:
            match test:
                case ast.UnaryOp(op=ast.Not()):
                    continue
                case ast.Compare(
                    ops=[ast.Eq() | ast.NotEq() | ast.Is() | ast.IsNot() | ast.In() | ast.NotIn()]
                ):
                    continue
            yield self._instead(test, f"(not ({self._text(test)}))")

    def _without_each(self, keywords: Sequence[ast.keyword]) -> Iterator[Mutant]:
        """A field that is not replaced."""
        for one in keywords:
            start, end = self._span(one)
            rest = self._raw[end:]
            comma = len(rest) - len(rest.lstrip())
            if one.arg is not None and rest[comma : comma + 1] in (b",", b")"):
                yield self._fault(start, end + comma + (rest[comma : comma + 1] == b","), "", one)

    def _instead(self, node: ast.AST, after: str) -> Mutant:
        start, end = self._span(node)
        return self._fault(start, end, after, node)

    def _between(self, left: ast.AST, right: ast.AST, after: str) -> Mutant:
        """Another operator between two operands, which may stand in parentheses."""
        start, end = self._span(left)[1], self._span(right)[0]
        between = self._raw[start:end].decode()
        bare = between.strip(" \n\t()\\")
        at = start + len(between[: between.index(bare)].encode())
        return self._fault(at, at + len(bare.encode()), after, right)

    def _fault(self, start: int, end: int, after: str, node: ast.AST) -> Mutant:
        line: int = node.lineno  # type: ignore[attr-defined]
        return Mutant(self._path, start, end, after, self._raw[start:end].decode(), line)

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._raw[start:end].decode()

    def _span(self, node: ast.AST) -> tuple[int, int]:
        start = self._begins[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
        end = self._begins[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
        return start, end


def _is_left_alone(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()) | ast.Assert() | ast.Raise() | ast.JoinedStr():
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.Assign(targets=[target], value=value):
            return _is_figure(target, value)
        case ast.Slice(lower=None, upper=ast.Constant(value=int() as most), step=None):
            return most >= _CUT
    return False


def _declared(node: ast.AST) -> list[ast.keyword]:
    match node:
        case ast.Call(func=ast.Name(id=name), keywords=keywords) if name in _DECLARES:
            return [one for one in keywords if one.arg in _DECLARES[name]]
    return []


def _is_figure(target: ast.expr, value: ast.expr) -> bool:
    """A number that has a name: tests ask it by that, and do not repeat it."""
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    plain = (
        ast.Constant,
        ast.BinOp,
        ast.UnaryOp,
        ast.Name,
        ast.Tuple,
        ast.operator,
        ast.unaryop,
        ast.expr_context,
    )
    return all(isinstance(one, ast.Name) and one.id.isupper() for one in names) and all(
        isinstance(node, plain) for node in ast.walk(value)
    )


def _is_parity(node: ast.AST) -> TypeGuard[ast.BinOp]:
    match node:
        case ast.BinOp(left=ast.BinOp(op=ast.Add() | ast.Sub()), op=ast.Mod(), right=ast.Constant(value=2)):
            return True
    return False


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
