"""JSON documents that contain a checksum over everything else in them (pure).

A document is one JSON object in the one form that `with_checksum` writes.  What is read back has to have exactly that
form, so that a change of any byte is found.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_KEY = "checksum"


def with_checksum(fields: Mapping[str, Any]) -> bytes:
    """The document with these fields, which hold JSON's own types only, and their checksum."""
    found = hashlib.sha256(_form(fields)).hexdigest()
    return _form({**fields, _KEY: f"sha256:{found}"})


def checked(content: bytes) -> dict[str, Any]:
    """Fields of a document without its checksum.  Raises ValueError for one that was changed or cut since."""
    fields = json.loads(content)
    if not isinstance(fields, dict) or _KEY not in fields:
        raise ValueError("it has no checksum")
    del fields[_KEY]
    if with_checksum(fields) != content:
        raise ValueError("it does not fit its checksum")
    return fields


def _form(fields: Mapping[str, Any]) -> bytes:
    return json.dumps(fields, indent=1, sort_keys=True, allow_nan=False).encode()
