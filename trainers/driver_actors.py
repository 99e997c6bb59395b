"""The detached Ray actors of drivers, by name, and the assignment of drivers to attempts in Ray's internal store."""

from __future__ import annotations

import contextlib
from collections.abc import Collection
from typing import Any

import ray
from ray.experimental import internal_kv

from remora.ray_resources import DRIVER_SHARE, DRIVERS
from trainers import ray_train
from trainers.driver.driver import Driver

#: Ray namespace of all drivers.
NAMESPACE = "remora"
#: Of Ray's internal store.
KV_NAMESPACE = b"remora"
#: Only the node for drivers has it, which is never preempted.  An actor that needs no resource is first asked of a
#: random node, and dies with it when that one is just being lost.
_SHARE = {DRIVERS: DRIVER_SHARE}
_OF_ATTEMPT = b"driver:"
#: Under which heads of Ray an attempt's driver was asked for.
_HEADS = b"heads-of-driver:"
#: Drivers that an attempt had before, of which nothing has proved that they ended.
_FORMER = b"former-drivers:"


def make(name: str) -> Any:
    """The driver of that name, which is started if there is none; returns before it is up."""
    actor = ray.remote(Driver).options(
        name=name,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        resources=_SHARE,
        max_concurrency=1000,
    )
    return actor.remote()


def find(name: str | None) -> Any:
    """The driver of that name, None when Ray's head has none that lives."""
    try:
        return ray.get_actor(name or "", namespace=NAMESPACE)
    except ValueError:
        return None


def is_pending(name: str) -> bool:
    """Whether Ray has that driver in its books, and it has not begun."""
    handle = find(name)
    return handle is not None and ray_train.is_pending(handle)


def is_lost(name: str) -> bool:
    """Whether Ray's head has no such driver that lives or is to; a handle may still be found in this process alone."""
    handle = find(name)
    return handle is None or ray_train.is_lost(handle)


def end(name: str) -> None:
    """End a driver that is not needed; does nothing when there is none."""
    with contextlib.suppress(ValueError, ray.exceptions.RayError):
        ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)


def name_of(attempt_id: str) -> str | None:
    """Name of the attempt's driver, which may be dead; None when it has none."""
    return _read(_key(attempt_id))


def give(attempt_id: str, name: str) -> str:
    """Let the driver of that name be the attempt's, unless it has one; the name of the one that it has now."""
    internal_kv._internal_kv_put(_key(attempt_id), name.encode(), overwrite=False, namespace=KV_NAMESPACE)
    return name_of(attempt_id) or name


def forget(attempt_id: str) -> None:
    """Let the attempt have no driver; fine when it has none."""
    internal_kv._internal_kv_del(_key(attempt_id), namespace=KV_NAMESPACE)
    internal_kv._internal_kv_del(_HEADS + attempt_id.encode(), namespace=KV_NAMESPACE)


def replace(attempt_id: str) -> None:
    """Let the attempt have another driver than its present one, which is to be ended before the attempt is released.

    The head may only have lost sight of it.
    """
    name = name_of(attempt_id)
    if name is not None:
        # Before it is forgotten: this process may end between the two.
        value = " ".join(dict.fromkeys((*former(attempt_id), name))).encode()
        internal_kv._internal_kv_put(_FORMER + attempt_id.encode(), value, namespace=KV_NAMESPACE)
    forget(attempt_id)


def former(attempt_id: str) -> tuple[str, ...]:
    """Names of the drivers that the attempt had before."""
    return tuple((_read(_FORMER + attempt_id.encode()) or "").split())


def end_former(attempt_id: str) -> bool:
    """End the drivers that the attempt had before; False while Ray's head says of one that it lives or is to."""
    names = former(attempt_id)
    for name in names:
        end(name)
    if not all(map(is_lost, names)):
        return False
    if names:
        internal_kv._internal_kv_del(_FORMER + attempt_id.encode(), namespace=KV_NAMESPACE)
    return True


def heads_of(attempt_id: str) -> frozenset[str]:
    """Ray node ids of the heads under which the attempt's driver was asked for; empty where that is not known."""
    return frozenset((_read(_HEADS + attempt_id.encode()) or "").split())


def asked_under(attempt_id: str, heads: Collection[str]) -> None:
    """Write down, before Ray is asked for the attempt's driver, which heads there are."""
    value = " ".join(sorted(heads)).encode()
    internal_kv._internal_kv_put(_HEADS + attempt_id.encode(), value, namespace=KV_NAMESPACE)


def attempts() -> list[str]:
    """Ids of the attempts that have a driver, which may be dead."""
    keys = internal_kv._internal_kv_list(_OF_ATTEMPT, namespace=KV_NAMESPACE)
    return [key.removeprefix(_OF_ATTEMPT).decode() for key in keys]


def names_of_attempts() -> set[str]:
    """Names of the drivers that attempts have."""
    keys = internal_kv._internal_kv_list(_OF_ATTEMPT, namespace=KV_NAMESPACE)
    return {name for key in keys if (name := _read(key)) is not None}


def _read(key: bytes) -> str | None:
    value = internal_kv._internal_kv_get(key, namespace=KV_NAMESPACE)
    return value.decode() if value else None


def _key(attempt_id: str) -> bytes:
    return _OF_ATTEMPT + attempt_id.encode()
