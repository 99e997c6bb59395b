"""A cluster of the embedded service that fails leaves the others as they are."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from cluster.provider import ProviderError
from service.embedded import parts, upkeep
from service.embedded.home_lock import HomeLock
from service.embedded.parts import end_clusters
from service.embedded.upkeep import Part
from service.settings import Settings
from service.up import Up


class Standing:
    """A part that stands where none of its kind has to be started."""

    address = "127.0.0.1:1"

    def __init__(self) -> None:
        self.is_started = False

    def start(self, _: str) -> None:
        self.is_started = True

    def end(self) -> None:
        self.is_started = False

    def is_alive(self) -> bool:
        return self.is_started

    is_ready = is_alive

    def where(self) -> str:
        return "here"

    def complaint(self) -> str:
        return ""


class Said(io.StringIO):
    """What was printed; ends the service after the words that are waited for."""

    def __init__(self, words: str) -> None:
        super().__init__()
        self.words = words
        self.service: Up | None = None

    def write(self, text: str) -> int:
        if self.words in text and self.service is not None:
            self.service.stop.set()
        return super().write(text)


def test_a_further_cluster_that_cannot_start_is_left_out_and_the_others_run_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "FIRST_PAUSE_S", 0.0)
    (tmp_path / "clusters").mkdir()
    (tmp_path / "clusters" / "ward").write_text("where its folder would be\n")
    said = Said("the other clusters go on")
    with HomeLock(tmp_path) as lock:
        console = Console(file=said, soft_wrap=True)
        service = Up(Settings(home=tmp_path, nodes=0), lock, console, ["ward", "lab"])
        said.service = service
        for group in service._groups:
            own = {part: Standing() for part in group.sources}
            if group.cluster == "ward":
                # The real one: its head finds no folder.
                continue
            group.sources.update(own)  # type: ignore[arg-type]
            group.head = own[Part.HEAD]  # type: ignore[assignment]
        service.run()
        first, ward, lab = service._groups
        assert "the head of the cluster ward does not start" in said.getvalue()
        assert [one.is_given_up for one in (first, ward, lab)] == [False, True, False]
        assert all(source.is_alive() for group in (first, lab) for source in group.sources.values())


def test_all_clusters_are_ended_where_one_of_them_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = []

    def end(home: Path) -> int:
        ended.append(home.name)
        if home.name == "lab":
            raise ProviderError("its node does not end")
        return 1

    for name in ("lab", "ward"):
        (tmp_path / "home" / "clusters" / name).mkdir(parents=True)
    monkeypatch.setattr(parts, "end_cluster", end)
    with pytest.raises(ProviderError, match="its node does not end"):
        end_clusters(tmp_path / "home")
    assert ended == ["lab", "ward", "home"]
