"""Another secret for the cluster: who knows it ends first and starts last, and the file is replaced in between."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service.installation import cluster_secret, commands
from service.installation.__main__ import main
from service.installation.cluster_secret import replace_secret, to_stop
from service.installation.layout import Installation, InstallationProblem, Layout
from service.installation.units import Unit, units_of


def installation(**more: object) -> Installation:
    chosen = {"has_head": True, **more}
    return Installation(
        supervisor="supervisord", apis=1, port=7265, controllers=2, head="127.0.0.2:6379", **chosen
    )  # type: ignore[arg-type]


@dataclass
class Recorded:
    """A supervisor that writes down what it is asked for, and the secret that each process started with."""

    token: Path
    calls: list[str] = field(default_factory=list)
    started: dict[str, str] = field(default_factory=dict)
    #: A process that cannot be ended.
    stays: str = ""

    def write(self, units: Sequence[Unit]) -> None:
        raise AssertionError("the processes stay the same")

    def apply(self) -> None:
        raise AssertionError("the processes stay the same")

    def restart(self, unit: str) -> None:
        raise AssertionError(f"{unit} would start before the others have ended")

    def stop(self, unit: str) -> None:
        if unit == self.stays:
            raise InstallationProblem(f"{unit} does not end")
        self.calls.append(f"stop {unit}")

    def start(self, unit: str) -> None:
        self.calls.append(f"start {unit}")
        self.started[unit] = self.token.read_text()


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    (layout.home / "gcs").mkdir(parents=True)
    (layout.home / "gcs/state").write_text("nodes and drivers")
    (layout.home / "ray.token").write_text("old")
    return layout


def test_all_of_ray_ends_before_any_of_it_starts_with_the_new_secret(layout: Layout) -> None:
    units, said = units_of(installation(), ["1.0-a"]), list[str]()
    supervisor = Recorded(layout.home / "ray.token")
    replace_secret(layout, installation(), units, supervisor, said.append)
    order = ["controller-1", "controller-2", "drivers-1.0-a", "head"]
    assert supervisor.calls == [
        *(f"stop {name}" for name in order),
        *(f"start {name}" for name in order[::-1]),
    ]
    (secret,) = set(supervisor.started.values())
    assert len(secret) == 64
    assert secret == (layout.home / "ray.token").read_text() != "old"
    assert stat.S_IMODE((layout.home / "ray.token").stat().st_mode) == 0o600
    assert not (layout.home / "gcs").exists(), "the head begins without nodes that are gone"
    assert secret not in "".join(said)
    assert not [one for one in to_stop(units) if one.name.startswith("api")], "the API answers throughout"


def test_what_does_not_end_leaves_the_old_secret_and_everything_is_started_again(layout: Layout) -> None:
    supervisor = Recorded(layout.home / "ray.token", stays="head")
    with pytest.raises(InstallationProblem, match="head does not end"):
        replace_secret(layout, installation(), units_of(installation(), ["1.0-a"]), supervisor, print)
    assert set(supervisor.started.values()) == {"old"}
    assert {"controller-1", "drivers-1.0-a", "head"} <= supervisor.started.keys()


@pytest.mark.parametrize("killed_in", ["rmtree", "write_private"])
def test_a_head_that_starts_after_an_interruption_finds_all_of_its_state_or_none(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, killed_in: str
) -> None:
    files = {"state", "state-2", "state-3"}
    for name in files:
        (layout.home / "gcs" / name).write_text("nodes and drivers")
    seen: list[set[str]] = []

    def killed(*_: object, **__: object) -> None:
        state = layout.home / "gcs"
        seen.append({one.name for one in state.iterdir()} if state.exists() else set())
        if killed_in == "write_private" or len(seen) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(cluster_secret.shutil if killed_in == "rmtree" else cluster_secret, killed_in, killed)
    with pytest.raises(KeyboardInterrupt):
        cluster_secret.replace_in(layout.home)
    assert all(one in (files, set()) for one in seen), "nothing is deleted from where the head looks"
    monkeypatch.undo()
    cluster_secret.replace_in(layout.home)
    assert (layout.home / "ray.token").read_text() != "old"
    assert not [one for one in layout.home.iterdir() if one.name.startswith("gcs")]


@pytest.mark.parametrize(
    ("has_head", "words", "said"),
    [
        (True, [], "newest checkpoints; say so with --yes"),
        (False, ["--yes"], "the head is on another machine"),
    ],
)
def test_it_is_not_done_unasked_nor_elsewhere(
    layout: Layout, capsys: pytest.CaptureFixture[str], has_head: bool, words: list[str], said: str
) -> None:
    installation(has_head=has_head).write(layout.record)
    assert main(["rotate", "--prefix", str(layout.prefix), *words]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert (layout.home / "ray.token").read_text() == "old"


@pytest.mark.parametrize("has_head", [True, False])
def test_on_a_machine_of_azure_the_secret_is_the_vaults(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_head: bool
) -> None:
    waits, supervisor = layout.prefix / "waits", Recorded(layout.home / "ray.token")
    monkeypatch.setattr(commands, "NEXT_SECRET", waits)
    monkeypatch.setattr(commands, "supervisor_of", lambda *_: supervisor)
    installation(has_head=has_head, settings=(str(commands.DEPLOYED[0]),)).write(layout.record)
    layout.current.symlink_to(layout.releases / "1.0-a")
    rotate = ["rotate", "--prefix", str(layout.prefix), "--yes"]

    assert main(rotate) == 1
    error = capsys.readouterr().err
    assert "put one there as remora-CLUSTER-ray-token" in error
    assert error.count("\n") == 1
    assert supervisor.calls == []
    assert (layout.home / "ray.token").read_text() == "old"

    waits.write_text("of the vault")
    supervisor.stays = "controller-1"
    assert main(rotate) == 1
    assert waits.exists(), "the next call does the same"
    supervisor.stays = ""
    assert main(rotate) == 0
    of_ray = ("head", "drivers-1.0-a") if has_head else ("member",)
    assert supervisor.started == dict.fromkeys((*of_ray, "controller-1", "controller-2"), "of the vault")
    assert not waits.exists()
    assert "of the vault" not in "".join(capsys.readouterr())
