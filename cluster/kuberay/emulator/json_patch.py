"""Patches of JSON documents as Kubernetes applies them: RFC 6902, as far as it is used here, and RFC 7386 (pure)."""

from __future__ import annotations

import copy
from typing import Any


class PatchUnusable(Exception):
    """It is no patch that this server knows."""


class PatchFails(Exception):
    """A test in it failed, or it names a place that is not there."""


def patched(document: dict[str, Any], patch: object) -> dict[str, Any]:
    """The document after a JSON patch; the given one stays as it is.  Raises PatchUnusable and PatchFails."""
    if not isinstance(patch, list):
        raise PatchUnusable("a JSON patch is a list of operations")
    after = copy.deepcopy(document)
    for one in patch:
        if not isinstance(one, dict) or not isinstance(one.get("path"), str) or "op" not in one:
            raise PatchUnusable("an operation has op and path")
        _apply(after, one)
    return after


def _apply(document: dict[str, Any], operation: dict[str, Any]) -> None:
    *way, last = [_plain(word) for word in operation["path"].split("/")[1:]] or [""]
    place: Any = document
    for word in way:
        place = _found(place, word)
    kind, value = operation["op"], operation.get("value")
    if kind == "test":
        if _found(place, last) != value:
            raise PatchFails(f"testing value {operation['path']} failed")
    elif kind == "add" and isinstance(place, list):
        place.insert(len(place) if last == "-" else _index(place, last, len(place)), value)
    elif kind == "add" and isinstance(place, dict):
        place[last] = value
    elif kind in ("replace", "remove"):
        _found(place, last)
        key: Any = last if isinstance(place, dict) else _index(place, last, len(place) - 1)
        if kind == "replace":
            place[key] = value
        else:
            del place[key]
    else:
        raise PatchUnusable(f"this server does not know {kind} there")


def _plain(word: str) -> str:
    return word.replace("~1", "/").replace("~0", "~")


def _found(place: Any, word: str) -> Any:
    if isinstance(place, dict) and word in place:
        return place[word]
    if isinstance(place, list):
        return place[_index(place, word, len(place) - 1)]
    raise PatchFails(f"doc is missing path: {word}")


def _index(place: list[Any], word: str, last: int) -> int:
    if not word.isdecimal() or int(word) > last:
        raise PatchFails(f"doc is missing index {word} of {len(place)}")
    return int(word)


def merged(document: object, patch: object) -> Any:
    """The document after a merge patch, in which null deletes."""
    if not isinstance(patch, dict):
        return patch
    after = dict(document) if isinstance(document, dict) else {}
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = merged(after.get(key), value)
    return after
