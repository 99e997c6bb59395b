"""A service whose home is removed under it cannot be found by anybody any more, so it ends by itself."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cluster.local.folders import ClusterFolders
from tests.e2e.embedded import Embedded
from tests.e2e.processes import PATIENCE_S, processes_with, until

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]


def test_a_service_whose_home_was_removed_ends_and_leaves_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    service = Embedded(home, nodes=1)
    service.start()
    temporary = ClusterFolders(home).temporary
    with service.up_log.open() as log:
        shutil.rmtree(home, ignore_errors=True)
        assert service.process.wait(timeout=PATIENCE_S) == 1
        assert f"{home} was removed while the service ran in it, so it ends" in log.read()
    until(lambda: not processes_with(str(home)), "every process of the home has ended")
    assert not temporary.exists()
