"""What keeps commands apart on this machine, for tests that need one kind of it."""

from __future__ import annotations

import pytest

from remora.isolation import Isolation, IsolationImpossible, Walls, decide
from remora.machine_isolation import offered


def decide_or_skip(asked: Isolation) -> Walls | None:
    """What that comes to here; the test is skipped, with why, where it is impossible."""
    try:
        return decide(asked, offered(asked))
    except IsolationImpossible as error:
        pytest.skip(str(error))
