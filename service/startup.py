"""What both processes do first: settings from the environment and the command line."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import ValidationError

from service.settings import Settings

log = logging.getLogger(__name__)


def read_settings(given: dict[str, Any]) -> Settings | None:
    """Settings from `REMORA_*` with the given ones above them; None, with what is wrong logged, if they are bad."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        for problem in error.errors():
            name = ".".join(str(part) for part in problem["loc"])
            log.error("the setting %s is wrong: %s", name, problem["msg"])  # noqa: TRY400
    return None
