"""The parts of a Kubernetes pod that a worker has as well: command, variables, resources."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from remora.job_formats.field_outcomes import Draft, Fields
from remora.spec.fields import refuses_variable
from remora.spec.problems import short
from remora.spec.secret_uses import is_secret_name

_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)")
_QUANTITY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([A-Za-z]*)")
_UNITS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "": 1.0, "m": 1e-3} | {
    f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTP", start=1)
}
#: What is said of an image.
IMAGE_LEFT = "the image is not taken over; name it with --image, and give its code by --code"


@dataclass(frozen=True)
class Command:
    """An argument list of a manifest."""

    words: list[str]
    #: The same before values of variables, which may be passwords, were put in.
    written: list[str]


@dataclass(frozen=True)
class Container:
    """What one container of a manifest says."""

    #: Dotted path in the manifest.
    path: str
    command: Command | None
    variables: dict[str, str]
    #: Its section `resources`, not read yet.
    resources: Fields


def read_container(draft: Draft, pod: Fields, name: str) -> Container | None:
    """The container of that name (or the only one) of a pod's specification; None without any."""
    containers = pod.take("containers")
    for key, _ in pod.items():
        draft.leave(pod.name(key), "workers are no pods")
    if not isinstance(containers, list) or not containers:
        return None
    named = [one for one in containers if isinstance(one, Mapping) and one.get("name") == name]
    path = pod.name("containers")
    if len(containers) > 1:
        draft.leave(path, f"only the container {name!r} is taken" if named else "only the first one is taken")
    fields = Fields(draft, (named or containers)[0], path)
    fields.drop("name", "imagePullPolicy")
    fields.leave("image", IMAGE_LEFT)
    fields.leave("volumeMounts", "nothing is mounted; name paths that the nodes can read")
    fields.leave("securityContext", "workers run as the user of their node")
    variables = read_environment(draft, fields)
    command = words_of(draft, fields, variables)
    resources = fields.section("resources")
    fields.close()
    return Container(path, command, variables, resources)


def read_environment(draft: Draft, fields: Fields) -> dict[str, str]:
    """Take `env`: a list of names with values."""
    raw = fields.take("env")
    if raw is not None and not isinstance(raw, list):
        draft.refuse(fields.name("env"), f"{short(raw)} given, expected a list of names with values")
    variables: dict[str, str] = {}
    for one in raw if isinstance(raw, list) else []:
        entry = Fields(draft, one, fields.name("env"))
        name, value = entry.text("name") or "", entry.text("value")
        where = f"{entry.path}.{name[:80]}"
        if (given := entry.take("valueFrom")) is not None:
            _take_secret(draft, name, given, where)
        elif refusal := refuses_variable(name):
            draft.leave(where, refusal)
        else:
            variables[name] = value or ""
            draft.put_variable(name, variables[name], where)
        entry.close()
    fields.leave("envFrom", "its values stand elsewhere; give them by --env")
    return variables


def _take_secret(draft: Draft, name: str, given: object, where: str) -> None:
    """A variable whose value is in a secret of Kubernetes becomes a secret of the project, called like the variable."""
    reference = given.get("secretKeyRef") if isinstance(given, Mapping) else None
    is_needed = isinstance(reference, Mapping) and reference.get("optional") is not True
    if is_needed and is_secret_name(name) and refuses_variable(name) is None:
        draft.add_secret(name, where)
    elif reference is not None:
        draft.leave(
            where, "the secret may be absent; name it in environment.secrets where the project has it"
        )
    else:
        draft.leave(where, "its value stands elsewhere; give it by --env")


def words_of(draft: Draft, fields: Fields, variables: dict[str, str]) -> Command | None:
    """Take `command` and `args` as one argument list, with `$(NAME)` replaced as Kubernetes does; None without any."""
    words: list[str] = []
    for key in ("command", "args"):
        raw = fields.take(key)
        if raw is None:
            continue
        if not isinstance(raw, list) or not all(isinstance(word, str) for word in raw):
            draft.refuse(fields.name(key), f"{short(raw)} given, expected a list of texts")
            continue
        words += raw

    def value(match: re.Match[str]) -> str:
        return "$" if match.group() == "$$" else variables.get(match.group(1), match.group())

    return Command([_REFERENCE.sub(value, word) for word in words], words) if words else None


def read_resources(draft: Draft, fields: Fields, workers: int) -> None:
    """Take what a node asks for; each of its workers asks for an equal part."""
    wanted: dict[str, tuple[Any, str]] = {}
    for section in (fields.section("requests"), fields.section("limits")):
        for key, value in section.items():
            wanted[key] = (value, section.name(key))
    fields.leave("claims", "nodes are chosen by CPUs, GPUs and memory")
    fields.close()
    for key, (value, where) in wanted.items():
        amount = _amount(value)
        if amount is None:
            draft.refuse(where, f"{short(value)} given, expected a quantity such as 4, 500m or 8Gi")
        elif key == "cpu":
            draft.put("resources.cpus", _number(amount / workers), where)
        elif key == "memory":
            draft.put("resources.memory", int(amount / workers), where)
        elif key.endswith("/gpu"):
            draft.put("resources.gpus", _number(amount / workers), where)
        elif key.startswith("rdma/") and amount:
            # So the device plugins for InfiniBand call its adapters, whatever their number.
            draft.put("placement.fabric", "infiniband", where)
        else:
            draft.leave(where, "nodes are chosen by CPUs, GPUs and memory")


def _amount(value: object) -> float | None:
    """A quantity of Kubernetes as a number; sizes in bytes."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(min(value, 1e18)) if value >= 0 else None
    found = _QUANTITY.fullmatch(value) if isinstance(value, str) and len(value) < 40 else None
    if found is None or found.group(2) not in _UNITS:
        return None
    return min(float(found.group(1)), 1e18) * _UNITS[found.group(2)]


def _number(amount: float) -> float | int:
    return int(amount) if amount.is_integer() else round(amount, 3)
