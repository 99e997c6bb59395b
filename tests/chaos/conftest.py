"""One Ray cluster for all seeds; nodes are replaced as they die."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.reference import Reference
from tests.integration.network.lan import WHY_NOT, Lan, open_lan
from tests.integration.trainers.lab import Lab, open_lab
from tests.needed import is_weaker


@pytest.fixture(scope="module")
def lan() -> Iterator[Lan | None]:
    """A network whose cables can be pulled; where there can be none, nodes are frozen instead of cut off."""
    if WHY_NOT is not None:
        is_weaker(f"nodes are frozen instead of cut off: {WHY_NOT}")
        yield None
        return
    with open_lan() as lan:
        yield lan


@pytest.fixture(scope="module")
def lab(lan: Lan | None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with open_lab(tmp_path_factory.mktemp("home"), tmp_path_factory.mktemp("lab")) as lab:
        yield lab


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    return Reference(tmp_path_factory.mktemp("reference"))
