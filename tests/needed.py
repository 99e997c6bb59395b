"""What tests need from the machine: where it is missing, a laptop leaves them out and CI fails."""

from __future__ import annotations

import os
import warnings
from typing import NoReturn

import pytest


def is_missing(sentence: str) -> NoReturn:
    """Leave the test out, or fail it in CI, with a sentence that says what is missing and how it is had."""
    if os.environ.get("CI"):
        pytest.fail(sentence)
    pytest.skip(sentence)


def is_weaker(sentence: str) -> None:
    """Say that a test goes on with something weaker, or fail it in CI, with a sentence that says what is missing."""
    if os.environ.get("CI"):
        pytest.fail(sentence)
    warnings.warn(sentence, stacklevel=2)
