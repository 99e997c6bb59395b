"""What Azure says that a deployment would change, in lines (pure)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

_SIGNS = {"Create": "+", "Delete": "-", "Modify": "~", "Deploy": "!", "Unsupported": "?"}
#: Of a value that changes, at most this much is shown.
_SHOWN = 60


def lines_of(answer: Mapping[str, Any], subscription: str) -> Iterator[str]:
    """One line for each resource that would change, what changes of it below, and the numbers at the end.

    Ids are without `subscription`, the one that is asked; those of another one have theirs.
    """
    changes = answer.get("properties", answer).get("changes") or []
    for change in changes:
        kind = change["changeType"]
        if kind in _SIGNS:
            yield f"{_SIGNS[kind]} {_short(change['resourceId'], subscription)}{_reason(change)}"
            yield from _delta(change.get("delta") or [], 1)
    count = Counter(change["changeType"] for change in changes)
    words = [f"{number} {_WORDS.get(kind, kind)}" for kind, number in sorted(count.items())]
    yield ", ".join(words) or "nothing would change"


_WORDS = {
    "Create": "to create",
    "Delete": "to delete",
    "Modify": "to change",
    "Deploy": "to deploy",
    "NoChange": "unchanged",
    "Ignore": "not of the template",
    "Unsupported": "that Azure cannot foresee",
}


def _reason(change: Mapping[str, Any]) -> str:
    reason = change.get("unsupportedReason")
    return f" ({reason})" if reason else ""


def _delta(delta: list[Mapping[str, Any]], depth: int) -> Iterator[str]:
    for one in delta:
        if one.get("children"):
            yield f"{'  ' * depth}{one['path']}:"
            yield from _delta(one["children"], depth + 1)
        else:
            before, after = _value(one.get("before")), _value(one.get("after"))
            yield f"{'  ' * depth}{one['path']}: {before} -> {after}"


def _value(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _short(id: str, subscription: str) -> str:
    parts = id.split("/")
    return "/".join(parts[3:]) if len(parts) > 3 and parts[2].lower() == subscription else id
