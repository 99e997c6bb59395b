"""Where Ray's workers are forked: on heads and nodes that the service starts itself, unless the setting says no."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from service.settings import Settings
from trainers.preloaded import FORKED


@pytest.mark.parametrize(
    ("cloud", "forks", "modules"),
    [("local", True, FORKED), ("azure-emulated", True, FORKED), ("azure", True, ""), ("local", False, "")],
)
def test_of_whose_machines_they_are(
    tmp_path: Path, cloud: Literal["local", "azure-emulated", "azure"], forks: bool, modules: str
) -> None:
    assert Settings(home=tmp_path, cloud=cloud, fork_ray_workers=forks).forked_modules == modules
