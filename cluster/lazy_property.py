"""A property that is computed at its first use and then kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

Value = TypeVar("Value")


class lazy(Generic[Value]):  # noqa: N801 - reads like `property`
    """`functools.cached_property` without its lock, which Python 3.12 dropped as well: frozen values need none.

    Two threads that read it at once compute the same value twice.  It is stored in the instance's `__dict__`, so later
    reads do not call the descriptor.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[Value]: ...

    @overload
    def __get__(self, instance: object, owner: type) -> Value: ...

    def __get__(self, instance: object | None, owner: type) -> Value | lazy[Value]:
        """The value; the descriptor itself when the class is asked."""
        if instance is None:
            return self
        value = instance.__dict__[self._name] = self._compute(instance)
        return value
