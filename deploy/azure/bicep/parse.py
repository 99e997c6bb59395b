"""Reads Bicep: the part of the language that the files of deploy/azure use, and nothing else (pure)."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from deploy.azure.bicep.tree import (
    Array,
    Call,
    Declared,
    File,
    Index,
    Literal,
    Loop,
    Name,
    Object,
    Operation,
    Parameter,
    Property,
    Text,
)


class NotUnderstood(Exception):
    """A file says something that is not understood here; the message says where and what."""


_TOKEN = re.compile(
    r"(?P<space>[ \t\r\n]+|//[^\n]*)|(?P<number>\d+)|(?P<name>[A-Za-z_]\w*)"
    r"|(?P<sign>==|!=|&&|\|\||>=|<=|[@(){}\[\]=?:!.,+\-<>])|(?P<quote>')"
)
_ESCAPES = {"n": "\n", "r": "\r", "t": "\t", "'": "'", "\\": "\\", "$": "$"}
#: From the loosest to the closest.
_BINARY = (("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("+", "-"))


@dataclass(frozen=True)
class _Token:
    kind: str
    value: Any
    line: int


def _tokens(text: str, line: int = 1) -> list[_Token]:
    found, at = [], 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise NotUnderstood(f"line {line}: {text[at : at + 20]!r} is not understood")
        kind = match.lastgroup or ""
        if kind == "quote":
            parts, end = _string(text, match.end(), line)
            found.append(_Token("text", Text(parts), line))
        else:
            end = match.end()
            if kind != "space":
                found.append(_Token(kind, match[0], line))
        line += text.count("\n", at, end)
        at = end
    return found


def _string(text: str, at: int, line: int) -> tuple[tuple[Any, ...], int]:
    """The parts of the string whose content begins here, and where it has ended."""
    parts: list[Any] = []
    plain = ""
    while at < len(text) and text[at] not in "'\n":
        if text[at] == "\\":
            plain, at = plain + _ESCAPES[text[at + 1]], at + 2
        elif text.startswith("${", at):
            end = _end_of_hole(text, at + 2, line)
            inner = _Reader(_tokens(text[at + 2 : end], line))
            parts += [plain] if plain else []
            parts.append(inner.expression())
            plain, at = "", end + 1
        else:
            plain, at = plain + text[at], at + 1
    if at >= len(text) or text[at] != "'":
        raise NotUnderstood(f"line {line}: a string does not end")
    return (*parts, *([plain] if plain else [])), at + 1


def _end_of_hole(text: str, at: int, line: int) -> int:
    quoted = False
    for place in range(at, len(text)):
        if text[place] == "'":
            quoted = not quoted
        elif text[place] == "}" and not quoted:
            return place
    raise NotUnderstood(f"line {line}: '${{' does not end")


class _Reader:
    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = [*tokens, _Token("end", "", tokens[-1].line if tokens else 0)]
        self._at = 0

    def _is(self, *values: str) -> bool:
        token = self._tokens[self._at]
        return token.kind in ("sign", "name") and token.value in values

    def _take(self, *values: str) -> bool:
        found = self._is(*values)
        self._at += found
        return found

    def _next(self, kind: str = "", value: str = "") -> Any:
        token = self._tokens[self._at]
        if (kind and token.kind != kind) or (value and token.value != value):
            raise NotUnderstood(f"line {token.line}: {value or kind} is expected, not {token.value!r}")
        self._at += 1
        return token.value

    def _on_same_line(self) -> bool:
        return self._tokens[self._at].line == self._tokens[self._at - 1].line

    # --- statements

    def file(self) -> File:
        """Everything until the end."""
        file = File()
        while self._tokens[self._at].kind != "end":
            rules = self._decorators()
            self._statement(file, self._next("name"), rules)
        return file

    def _decorators(self) -> dict[str, Any]:
        rules = {}
        while self._take("@"):
            call = self._atom()
            rules[call.function] = call.arguments[0] if call.arguments else Literal(True)
        return rules

    def _statement(self, file: File, word: str, rules: dict[str, Any]) -> None:
        match word:
            case "targetScope":
                self._next("sign", "=")
                file.scope = self._next("text").parts[0]
            case "param":
                name, kind = self._next("name"), self._next("name")
                default = self.expression() if self._take("=") else None
                file.parameters[name] = Parameter(name=name, kind=kind, default=default, rules=rules)
            case "var":
                name = self._next("name")
                self._next("sign", "=")
                file.variables[name] = self.expression()
            case "output":
                name, kind = self._next("name"), self._next("name")
                self._next("sign", "=")
                file.outputs[name] = (kind, self.expression())
            case "resource" | "module":
                declared = self._declared(word == "module", rules)
                file.declared[declared.name] = declared
            case _:
                raise NotUnderstood(f"line {self._tokens[self._at].line}: {word!r} is no statement")

    def _declared(self, is_module: bool, rules: dict[str, Any]) -> Declared:
        name, what = self._next("name"), self._next("text").parts[0]
        is_existing = self._take("existing")
        self._next("sign", "=")
        loop = None
        if self._take("["):
            self._next("name", "for")
            loop = self._head_of_loop()
        condition = self._condition()
        body = self._atom()
        if loop is not None:
            self._next("sign", "]")
        batch = rules.get("batchSize")
        return Declared(
            name=name,
            what=what,
            body=body,
            condition=condition,
            is_existing=is_existing,
            is_module=is_module,
            loop=loop,
            batch=int(batch.value or 0) if isinstance(batch, Literal) else 0,
        )

    def _condition(self) -> Any:
        if not self._take("if"):
            return None
        self._next("sign", "(")
        condition = self.expression()
        self._next("sign", ")")
        return condition

    # --- expressions

    def expression(self, level: int = 0) -> Any:
        """An expression, of operators that bind at least as closely as this level."""
        if level == len(_BINARY):
            return self._unary()
        left = self.expression(level + 1)
        while self._is(*_BINARY[level]):
            left = Operation(self._next(), (left, self.expression(level + 1)))
        if level == 0 and self._take("?"):
            yes = self.expression()
            self._next("sign", ":")
            return Operation("?", (left, yes, self.expression()))
        return left

    def _unary(self) -> Any:
        if self._take("!"):
            return Operation("!", (self._unary(),))
        found = self._atom()
        while True:
            if self._take("."):
                found = Property(found, self._next("name"))
            elif self._is("[") and self._on_same_line():
                self._next()
                found = Index(found, self.expression())
                self._next("sign", "]")
            else:
                return found

    def _atom(self) -> Any:
        token = self._tokens[self._at]
        self._at += 1
        if token.kind == "text":
            return token.value
        if token.kind == "number":
            return Literal(int(token.value))
        if token.kind == "name":
            return self._named(token.value)
        if token.value == "(":
            inner = self.expression()
            self._next("sign", ")")
            return inner
        if token.value == "{":
            return self._object()
        if token.value == "[":
            return self._loop() if self._take("for") else Array(self._items("]"))
        raise NotUnderstood(f"line {token.line}: {token.value!r} begins no expression")

    def _named(self, word: str) -> Any:
        if word in ("true", "false", "null"):
            return Literal({"true": True, "false": False, "null": None}[word])
        if self._is("(") and self._on_same_line():
            self._next()
            return Call(word, self._items(")"))
        return Name(word)

    def _items(self, end: str) -> tuple[Any, ...]:
        items = []
        while not self._take(end):
            items.append(self.expression())
            self._take(",")
        return tuple(items)

    def _object(self) -> Object:
        pairs = []
        while not self._take("}"):
            key = self._next()
            self._next("sign", ":")
            pairs.append((key if isinstance(key, Text) else Text((key,)), self.expression()))
            self._take(",")
        return Object(tuple(pairs))

    def _loop(self) -> Loop:
        head = self._head_of_loop()
        value = self.expression()
        self._next("sign", "]")
        return replace(head, value=value)

    def _head_of_loop(self) -> Loop:
        """What a loop goes over, until its value."""
        index = ""
        if self._take("("):
            item = self._next("name")
            self._next("sign", ",")
            index = self._next("name")
            self._next("sign", ")")
        else:
            item = self._next("name")
        self._next("name", "in")
        over = self.expression()
        self._next("sign", ":")
        return Loop(item, over, None, index)


def read(text: str) -> File:
    """What a file says.  Raises NotUnderstood."""
    return _Reader(_tokens(text)).file()
