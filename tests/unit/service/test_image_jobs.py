"""A job that names an image is refused at once where the nodes have no podman to run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from remora.spec.spec import JobSpec
from service.images import NoImages, check_image
from service.settings import Settings

IMAGE = JobSpec.from_mapping({"command": "python a.py", "environment": {"image": "localhost/x"}})
NONE = JobSpec.from_mapping({"command": "python a.py"})


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only folder of PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("cloud", ["local", "azure-emulated"])
def test_nodes_that_are_processes_here_have_the_podman_of_this_machine(cloud: str, path: Path) -> None:
    settings = Settings(home=path, cloud=cloud)
    with pytest.raises(
        NoImages, match=r"^the nodes of this cluster have no podman, which runs images; have"
    ) as raised:
        check_image(settings, IMAGE)
    assert "\n" not in str(raised.value)
    check_image(settings, NONE)
    (path / "podman").touch(0o755)
    check_image(settings, IMAGE)


def test_machines_of_azure_have_their_own(path: Path) -> None:
    check_image(Settings(home=path, cloud="azure"), IMAGE)
