"""What a process accepts from a Ray cluster that may be hostile: values, and no code.

Ray pickles what actors answer and raise, and unpickling runs what the sender wants.  The controller holds the database,
keys and an identity in the cloud, and asks drivers, which share the head with whatever took it over.  So in that
process `ray.cloudpickle.loads`, through which Ray 2.60 unpickles everything that comes from others, makes only objects
of known kinds.  Ray unpickles the class of an actor as well, to know its methods; this process takes it from its own
code instead.  `tests/contracts/cluster/test_ray_internals.py` holds that.

A pickle can also set attributes (its opcode BUILD), and those of a class or of a member of an enumeration would stay.
So no class is on the stack of the unpickler, but a stand-in which makes instances of it and takes no attribute.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import io
import logging
import pickle
import sys
from collections.abc import Iterable
from typing import Any

log = logging.getLogger(__name__)

#: Packages whose dataclasses, enumerations, named tuples and exceptions are values.
_PACKAGES = ("trainers", "remora", "cluster")
#: Packages with classes of actors that are asked.
_ACTORS = ("trainers", "ray")
#: Exceptions of these modules, too.
_EXCEPTIONS = ("builtins", "ray.exceptions", "concurrent.futures", "asyncio.exceptions")
#: What else is a value; each by its module and name.
_VALUES = frozenset(
    {
        *(("builtins", name) for name in ("set", "frozenset", "bytearray", "complex", "range", "slice")),
        *(("collections", name) for name in ("OrderedDict", "deque", "Counter")),
        *(("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")),
        *(("pathlib", name) for name in ("PosixPath", "PurePosixPath")),
        ("decimal", "Decimal"),
        ("uuid", "UUID"),
    }
)


class CodeRefused(pickle.UnpicklingError):
    """Something of the cluster is more than a value; the message names it."""


def accept_values_only() -> None:
    """From now on, and for good, Ray unpickles nothing in this process but values."""
    import ray.cloudpickle
    from ray._private.function_manager import FunctionActorManager

    ray.cloudpickle.loads = loads
    ray.cloudpickle.load = load
    by_unpickling = FunctionActorManager._load_actor_class_from_gcs

    @functools.wraps(by_unpickling)
    def load_class(self: Any, job_id: Any, descriptor: Any) -> Any:
        return _actor_class(descriptor.module_name, descriptor.class_name) or by_unpickling(
            self, job_id, descriptor
        )

    FunctionActorManager._load_actor_class_from_gcs = load_class


def loads(
    data: Any,
    /,
    *,
    fix_imports: bool = True,
    encoding: str = "ASCII",
    errors: str = "strict",
    buffers: Iterable[Any] | None = None,
) -> Any:
    """As `pickle.loads`.  Raises CodeRefused for what is no value."""
    return load(io.BytesIO(data), fix_imports=fix_imports, encoding=encoding, errors=errors, buffers=buffers)


def load(
    file: Any,
    /,
    *,
    fix_imports: bool = True,
    encoding: str = "ASCII",
    errors: str = "strict",
    buffers: Iterable[Any] | None = None,
) -> Any:
    """As `pickle.load`.  Raises CodeRefused for what is no value."""
    values = _Values(file, fix_imports=fix_imports, encoding=encoding, errors=errors, buffers=buffers)
    return values.load()


def _actor_class(module: str, name: str) -> type | None:
    """The class of an actor as this process has it, from which Ray takes the signatures of its methods; None: none."""
    from ray.actor import ActorClass, _modify_class

    found = vars(sys.modules[module]).get(name) if module in sys.modules else None
    if isinstance(found, ActorClass):
        # Decorated where it is defined.
        found = found.__ray_metadata__.modified_class
    if not isinstance(found, type) or module.partition(".")[0] not in _ACTORS:
        return None
    modified: type = _modify_class(found)
    return modified


def _refuse_state(_shared: object, _state: object) -> None:
    raise CodeRefused("attributes of what is no instance of its own are not accepted from the Ray cluster")


class _StandIn(type):
    """The kind of types that stand for accepted classes."""

    real: type

    def __call__(cls, *positional: Any, **named: Any) -> Any:
        # REDUCE; NEWOBJ calls `__new__` of the stand-in.
        return cls.real(*positional, **named)

    def __setstate__(cls, state: object) -> None:
        _refuse_state(cls, state)

    def __setattr__(cls, name: str, value: object) -> None:
        _refuse_state(cls, value)


class _MemberOf:
    """In place of `getattr`, by which Python before 3.11.4 pickles members of some enumerations."""

    __slots__ = ()
    __setstate__ = _refuse_state

    def __call__(self, kind: object, name: object) -> Any:
        real = kind.real if isinstance(kind, _StandIn) else None
        members = real.__members__ if real is not None and issubclass(real, enum.Enum) else {}
        if not isinstance(name, str) or name not in members:
            raise CodeRefused("an attribute is no value that is accepted from the Ray cluster")
        return members[name]


@functools.cache
def _stand_in(kind: type) -> _StandIn:
    def make(_: object, /, *positional: Any, **named: Any) -> Any:
        return kind.__new__(kind, *positional, **named)

    if issubclass(kind, enum.Enum):
        # Its members are there once, and pickled without a state.
        type.__setattr__(kind, "__setstate__", _refuse_state)
    return _StandIn(kind.__name__, (), {"__slots__": (), "__new__": make, "real": kind})


class _Values(pickle.Unpickler):
    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _MemberOf()
        if (module, name) in _VALUES:
            return _stand_in(super().find_class(module, name))
        # Nothing is imported on behalf of others, and nothing is found through a module's own imports.
        found = vars(sys.modules[module]).get(name) if module in sys.modules else None
        if isinstance(found, type) and found.__module__ == module and _is_value(found):
            return _stand_in(found)
        log.debug("%s.%s of the Ray cluster is refused", module[:80], name[:80])
        raise CodeRefused(f"{module[:80]!a}.{name[:80]!a} is no value that is accepted from the Ray cluster")


def _is_value(kind: type) -> bool:
    if issubclass(kind, Exception):
        return kind.__module__ in _EXCEPTIONS or _is_ours(kind)
    is_record = dataclasses.is_dataclass(kind) or issubclass(kind, enum.Enum)
    return _is_ours(kind) and (is_record or (issubclass(kind, tuple) and hasattr(kind, "_fields")))


def _is_ours(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in _PACKAGES
