"""What a file of Bicep says, as far as the files of deploy/azure use the language (pure)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Text:
    """A string; its parts are strings and expressions, which stand there as `${...}`."""

    parts: tuple[Any, ...]


@dataclass(frozen=True)
class Literal:
    """A number, true, false or null."""

    value: int | bool | None


@dataclass(frozen=True)
class Name:
    """A parameter, a variable, a resource, a module or the item of a loop."""

    name: str


@dataclass(frozen=True)
class Call:
    """A call of a function."""

    function: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True)
class Property:
    """`of.name`."""

    of: Any
    name: str


@dataclass(frozen=True)
class Index:
    """`of[at]`."""

    of: Any
    at: Any


@dataclass(frozen=True)
class Object:
    """`{key: value}`; keys are texts."""

    pairs: tuple[tuple[Text, Any], ...]

    def get(self, name: str) -> Any:
        """The value of a key that is written out, None when there is none."""
        return next((value for key, value in self.pairs if key.parts == (name,)), None)


@dataclass(frozen=True)
class Array:
    """`[item]`."""

    items: tuple[Any, ...]


@dataclass(frozen=True)
class Loop:
    """`[for item in list: value]`, or `[for (item, index) in list: value]`."""

    item: str
    list: Any
    value: Any
    index: str = ""


@dataclass(frozen=True)
class Operation:
    """An operator with what it is applied to; `?` has three."""

    operator: str
    operands: tuple[Any, ...]


Expression: TypeAlias = Text | Literal | Name | Call | Property | Index | Object | Array | Loop | Operation


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """`param name kind = default`; `rules` are its decorators, by their names."""

    name: str
    kind: str
    default: Any = None
    rules: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Declared:
    """A resource (`what` is its type with its version) or a module (`what` is its file), or one for each of a list."""

    name: str
    what: str
    body: Object
    condition: Any = None
    is_existing: bool = False
    is_module: bool = False
    #: Of a loop, its item and its list; the value is the body.
    loop: Loop | None = None
    #: Of a loop, how many are made at a time; 0: all of them.
    batch: int = 0


@dataclass(kw_only=True)
class File:
    """One file."""

    scope: str = "resourceGroup"
    parameters: dict[str, Parameter] = field(default_factory=dict)
    variables: dict[str, Any] = field(default_factory=dict)
    declared: dict[str, Declared] = field(default_factory=dict)
    #: By name: type and value.
    outputs: dict[str, tuple[str, Any]] = field(default_factory=dict)
