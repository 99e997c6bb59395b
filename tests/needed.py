"""What tests need from the machine: where it is missing, a laptop leaves them out and CI fails."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def is_missing(sentence: str) -> NoReturn:
    """Leave the test out, or fail it in CI, with a sentence that says what is missing and how it is had."""
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)
