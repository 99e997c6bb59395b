"""Backups of both kinds of database: taken while others write, put back whole or not at all."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
import sqlalchemy as sa

from service.installation import backups
from service.installation.backups import back_up, read_manifest, restore
from service.installation.layout import InstallationProblem, Layout
from service.store.database import Database
from service.store.leases import tokens
from service.store.tables import leases

AT = "2026-11-26T08:00:00+00:00"


@pytest.fixture
def layout(tmp_path: Path, database_url: str) -> Layout:
    """An installation with this database, and a key of secrets."""
    layout = Layout(tmp_path / "installed")
    layout.settings.parent.mkdir(parents=True)
    layout.settings.write_text(f"REMORA_DATABASE_URL={database_url}\n")
    layout.home.mkdir()
    (layout.home / "secrets.key").write_text("the old key")
    (layout.home / "ray.token").write_text("the old token")
    return layout


def names(url: str) -> list[str]:
    """What the test has put into the database."""
    database = Database(url)
    try:
        return database.query(lambda connection: list(connection.execute(sa.select(leases.c.name)).scalars()))
    finally:
        database.close()


def tokens_of(url: str) -> dict[str, int]:
    database = Database(url)
    try:
        return database.query(tokens)
    finally:
        database.close()


def put(url: str, name: str, token: int = 1) -> None:
    """A lease; one of that name is replaced."""
    database = Database(url)
    try:
        database.transact(
            lambda connection: (
                connection.execute(sa.delete(leases).where(leases.c.name == name)),
                connection.execute(
                    sa.insert(leases).values(name=name, owner="o", token=token, renewed_at=0.0)
                ),
            )
        )
    finally:
        database.close()


def test_what_was_there_is_there_again(layout: Layout, database_url: str, tmp_path: Path) -> None:
    put(database_url, "before")
    target = tmp_path / "backups" / "one.tar"
    manifest = back_up(layout, target, release="1.0-a", at=AT)
    assert manifest == read_manifest(target)
    assert target.stat().st_mode & 0o777 == 0o600
    put(database_url, "after")
    (layout.home / "secrets.key").write_text("another key")
    (layout.home / "ray.token").write_text("the token of a cluster that runs")
    for _ in range(2):  # the second time is that of a command that was killed at its end
        assert restore(layout, target)["release"] == "1.0-a"
        assert names(database_url) == ["before"]
    assert (layout.home / "secrets.key").read_text() == "the old key"
    assert (layout.home / "ray.token").read_text() == "the token of a cluster that runs"
    assert [path for path in layout.home.iterdir() if path.name.startswith(".restore")] == []


def test_no_token_of_a_lease_comes_twice(layout: Layout, database_url: str, tmp_path: Path) -> None:
    put(database_url, "controller", token=3)
    back_up(layout, tmp_path / "one.tar", release="1.0-a", at=AT)
    put(database_url, "controller", token=9)
    restore(layout, tmp_path / "one.tar")
    assert tokens_of(database_url) == {"controller": 9}
    # Killed after the database was replaced and before its tokens were raised.
    put(database_url, "controller", token=3)
    restore(layout, tmp_path / "one.tar")
    assert tokens_of(database_url) == {"controller": 9}


def test_a_backup_is_of_one_moment(layout: Layout, database_url: str, tmp_path: Path) -> None:
    database = Database(database_url)
    try:
        # A write that is not committed is in no backup, and does not keep it waiting.
        with database.engine.connect() as connection:
            connection.execute(sa.insert(leases).values(name="open", owner="o", token=1, renewed_at=0.0))
            back_up(layout, tmp_path / "one.tar", release="1.0-a", at=AT)
            connection.rollback()
    finally:
        database.close()
    put(database_url, "after")
    restore(layout, tmp_path / "one.tar")
    assert names(database_url) == []


def test_a_backup_never_replaces_another_one(layout: Layout, tmp_path: Path) -> None:
    back_up(layout, tmp_path / "one.tar", release="1.0-a", at=AT)
    with pytest.raises(InstallationProblem, match="never replaces"):
        back_up(layout, tmp_path / "one.tar", release="1.0-a", at=AT)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".backup")) == []


@pytest.mark.parametrize("place", [0.2, 0.5, 0.9])
def test_a_damaged_backup_replaces_nothing(
    layout: Layout, database_url: str, tmp_path: Path, place: float
) -> None:
    target = tmp_path / "one.tar"
    back_up(layout, target, release="1.0-a", at=AT)
    put(database_url, "newer")
    content = bytearray(target.read_bytes())
    middle = int(len(content) * place)
    content[middle : middle + 4096] = b"\xff" * len(content[middle : middle + 4096])
    target.write_bytes(content)
    with pytest.raises(InstallationProblem):
        restore(layout, target)
    assert names(database_url) == ["newer"]


def test_a_file_of_another_kind_is_no_backup(layout: Layout, tmp_path: Path) -> None:
    for content in (b"", b"text", b"\0" * 20_000):
        (tmp_path / "other").write_bytes(content)
        with pytest.raises(InstallationProblem, match="no backup of Remora"):
            restore(layout, tmp_path / "other")


def test_an_archive_writes_no_file_that_a_backup_does_not_have(layout: Layout, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    canary.write_text("whole")
    manifest = {"form": backups.FORM, "release": "x", "at": AT, "files": {"../../canary": "sha256:0"}}
    for files in ({"../../canary": "sha256:0"}, {str(canary): "sha256:0"}):
        _write(tmp_path / "hostile.tar", {**manifest, "files": files}, tuple(files))
        with pytest.raises(InstallationProblem, match="names files that no backup has"):
            restore(layout, tmp_path / "hostile.tar")
    assert canary.read_text() == "whole"


def test_one_of_a_later_form_is_not_guessed_at(layout: Layout, tmp_path: Path) -> None:
    _write(tmp_path / "later.tar", {"form": backups.FORM + 1, "files": {}}, ())
    with pytest.raises(InstallationProblem, match="made by a later Remora"):
        restore(layout, tmp_path / "later.tar")


def _write(path: Path, manifest: dict[str, object], members: tuple[str, ...]) -> None:
    first = path.with_suffix(".json")
    first.write_text(json.dumps(manifest))
    with tarfile.open(path, "w") as archive:
        archive.add(first, arcname="backup.json")
        for name in members:
            archive.addfile(tarfile.TarInfo(name))


def test_a_service_that_never_ran_has_nothing_to_back_up(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "empty")
    with pytest.raises(InstallationProblem, match="has never run here"):
        back_up(layout, tmp_path / "one.tar", release="1.0-a", at=AT)
    assert not (tmp_path / "one.tar").exists()
