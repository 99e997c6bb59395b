"""Reads files of operators that say where in a cloud the nodes stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

#: Bytes of such a file.
MOST_BYTES = 2**20

PlaceT = TypeVar("PlaceT", bound=BaseModel)


class CloudUnusable(Exception):
    """Nodes cannot be created in the configured cloud; the message is one sentence that says what to do."""


def read_place(path: Path, form: type[PlaceT], missing: str) -> PlaceT:
    """The place in this file, YAML or JSON; `missing` is said where there is none.  Raises CloudUnusable."""
    document = _document(path, missing)
    try:
        return form.model_validate(document)
    except ValidationError as error:
        problems = (_problem(one["loc"], one["msg"]) for one in error.errors(include_url=False))
        raise CloudUnusable(f"correct the file {path}: {'; '.join(problems)}") from error


def _document(path: Path, missing: str) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MOST_BYTES + 1)
        if len(text) > MOST_BYTES:
            raise CloudUnusable(f"the file {path} is longer than {MOST_BYTES} bytes, which no place is")
        document = yaml.safe_load(text)
    except FileNotFoundError as error:
        raise CloudUnusable(missing) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())[:300]
        raise CloudUnusable(f"the file {path} cannot be read, correct it: {said}") from error
    if not isinstance(document, dict):
        raise CloudUnusable(f"correct the file {path}: it is no mapping of names to values")
    return document


def _problem(place: tuple[int | str, ...], said: str) -> str:
    return f"{'.'.join(map(str, place))}: {said}"
