"""Backups of both kinds of database: taken while others write, put back whole or not at all."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command

from service.installation import as_user, backups
from service.installation.__main__ import main
from service.installation.backups import back_up, read_manifest, restore
from service.installation.layout import Installation, InstallationProblem, Layout
from service.store.database import Database
from service.store.leases import tokens
from service.store.migrate import configuration, migrate, revision_of
from service.store.tables import leases, secrets
from tests.postgres import PostgresServer

AT = "2026-11-26T08:00:00+00:00"


@pytest.fixture
def layout(tmp_path: Path, database_url: str) -> Layout:
    """An installation with this database, and a key of secrets."""
    return installed(tmp_path / "installed", database_url)


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database of each kind that had no migration."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'old.db'}"
        return
    server: PostgresServer = request.getfixturevalue("postgres")
    url = server.create(migrated=False)
    yield url
    server.drop(url)


def installed(folder: Path, database_url: str) -> Layout:
    layout = Layout(folder)
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
    # Behind its last member an archive has zeros alone.
    middle = int(len(content.rstrip(b"\0")) * place)
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


def test_a_backup_of_an_older_schema_is_restored_over_a_newer_one(tmp_path: Path, empty_url: str) -> None:
    layout = installed(tmp_path / "installed", empty_url)
    database = Database(empty_url)
    database.transact(lambda connection: command.upgrade(configuration(connection), "0033"))
    put(empty_url, "before")
    back_up(layout, tmp_path / "one.tar", release="1.0-a", at=AT)
    for _ in range(2):
        migrate(database)
        newest = database.query(revision_of)
        database.close()
        restore(layout, tmp_path / "one.tar")
        database = Database(empty_url)
        assert newest > database.query(revision_of) == "0033"
    # As the first process does that starts afterwards.
    migrate(database)
    assert database.query(revision_of) == newest
    database.close()
    assert names(empty_url) == ["before"]


def test_one_of_a_later_schema_replaces_nothing(layout: Layout, database_url: str, tmp_path: Path) -> None:
    put(database_url, "before")
    _set_revision(database_url, "later")
    back_up(layout, tmp_path / "later.tar", release="9.0-z", at=AT)
    put(database_url, "after")
    with pytest.raises(InstallationProblem, match=r"schema 'later', which .* restore it with '9\.0-z'"):
        restore(layout, tmp_path / "later.tar")
    assert sorted(names(database_url)) == ["after", "before"]


def _set_revision(url: str, revision: str) -> None:
    database = Database(url)
    database.transact(
        lambda connection: connection.execute(
            sa.text("UPDATE alembic_version SET version_num = :new"), {"new": revision}
        )
    )
    database.close()


def test_the_key_of_secrets_is_copied_from_where_it_is(
    layout: Layout, database_url: str, tmp_path: Path
) -> None:
    key = tmp_path / "elsewhere" / "the.key"
    with layout.settings.open("a") as file:
        file.write(f"REMORA_SECRETS_KEY_FILE={key}\n")
    back_up(layout, tmp_path / "none.tar", release="1.0-a", at=AT)
    _put_secret(database_url)
    with pytest.raises(InstallationProblem, match=r"have secrets, but their key .*the\.key is missing"):
        back_up(layout, tmp_path / "one.tar", release="1.0-a", at=AT)
    assert not (tmp_path / "one.tar").exists()
    key.parent.mkdir()
    key.write_text("the key elsewhere")
    back_up(layout, tmp_path / "one.tar", release="1.0-a", at=AT)
    key.unlink()
    restore(layout, tmp_path / "one.tar")
    assert key.read_text() == "the key elsewhere"
    assert key.stat().st_mode & 0o777 == 0o600


def _put_secret(url: str) -> None:
    database = Database(url)
    row = {
        "project": "red", "name": "token", "version": 1, "source": "value", "key_id": "k", "ciphertext": b"x",
        "created_at": 1.0, "updated_at": 1.0,
    }  # fmt: skip
    database.transact(lambda connection: connection.execute(sa.insert(secrets).values(row)))
    database.close()


def test_a_cluster_that_is_lost_gets_its_authority_back(layout: Layout, tmp_path: Path) -> None:
    authority = layout.home / "ray-tls" / "authority.pem"
    authority.parent.mkdir()
    authority.write_text("the old authority")
    back_up(layout, tmp_path / "one.tar", release="1.0-a", at=AT)
    authority.write_text("that of a cluster that runs")
    restore(layout, tmp_path / "one.tar")
    assert authority.read_text() == "that of a cluster that runs"
    authority.unlink()
    authority.parent.rmdir()
    restore(layout, tmp_path / "one.tar")
    assert authority.read_text() == "the old authority"


def test_what_lies_in_the_home_is_read_and_written_by_its_user(
    layout: Layout, database_url: str, tmp_path: Path
) -> None:
    put(database_url, "before")
    user = pwd.getpwuid(os.getuid()).pw_name
    target = tmp_path / "one.tar"
    assert back_up(layout, target, release="1.0-a", at=AT, user=user) == read_manifest(target)
    assert target.stat().st_mode & 0o777 == 0o600
    put(database_url, "after")
    (layout.home / "secrets.key").unlink()
    assert restore(layout, target, user=user)["release"] == "1.0-a"
    assert names(database_url) == ["before"]
    assert (layout.home / "secrets.key").read_text() == "the old key"
    assert [path for path in layout.home.iterdir() if path.name.startswith((".restore", ".backup"))] == []
    _write(tmp_path / "hostile.tar", {"form": backups.FORM, "at": AT, "files": {"x": "sha256:0"}}, ("x",))
    with pytest.raises(InstallationProblem, match=r"hostile\.tar names files that no backup has"):
        restore(layout, tmp_path / "hostile.tar", user=user)


def test_root_follows_nothing_that_the_user_has_linked_or_set(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_up(layout, tmp_path / "one.tar", release="1.0-a", at=AT)
    canary = tmp_path / "canary"
    canary.write_text("as it was")
    for name in ("leases.draft", "secrets.key"):
        (layout.home / name).unlink(missing_ok=True)
        (layout.home / name).symlink_to(canary)
    with layout.settings.open("a") as file:
        file.write(f"REMORA_SECRETS_KEY_FILE={canary}\n")
    asked: list[tuple[object, ...]] = []

    def refused(_: list[str], **named: Any) -> subprocess.CompletedProcess[bytes]:
        asked.append((named["user"], named["group"], named["extra_groups"], named["cwd"]))
        return subprocess.CompletedProcess([], 1, None, b"not as this user")

    monkeypatch.setattr("service.installation.as_user.subprocess.run", refused)
    with pytest.raises(InstallationProblem, match="not as this user"):
        back_up(layout, tmp_path / "two.tar", release="1.0-a", at=AT, user="daemon")
    with pytest.raises(InstallationProblem, match="not as this user"):
        restore(layout, tmp_path / "one.tar", user="daemon")
    assert asked == [("daemon", "daemon", [], "/")] * 2
    assert canary.read_text() == "as it was"
    assert not (tmp_path / "two.tar").exists()


def test_a_restoration_looks_through_the_storage_as_the_user_of_the_installation(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    user = pwd.getpwuid(os.getuid()).pw_name
    installation = Installation(
        supervisor="supervisord", apis=0, port=1, controllers=0, head="127.0.0.2:1", has_head=False, user=user
    )
    installation.write(layout.record)
    back_up(layout, tmp_path / "one.tar", release="1.0-a", at=AT)
    asked: list[str] = []
    call = as_user.call

    def recorded(user: str, module: str, *words: str, **more: Any) -> str:
        asked.append(f"{user} {module.rpartition('.')[2]}")
        return call(user, module, *words, **more)

    monkeypatch.setattr(as_user, "call", recorded)
    before = dict(os.environ)
    assert main(["restore", str(tmp_path / "one.tar"), "--prefix", str(layout.prefix)]) == 0
    assert asked == [f"{user} backups", f"{user} missing_files"]
    assert "the storage has all that the database names" in capsys.readouterr().out
    assert dict(os.environ) == before, "settings of the user are none of root's"


@pytest.mark.parametrize("left", ["nothing", "damaged"])
def test_tokens_of_a_database_that_cannot_be_read_are_left_behind(
    tmp_path: Path, empty_url: str, left: str
) -> None:
    layout = installed(tmp_path / "installed", empty_url)
    database = Database(empty_url)
    migrate(database)
    put(empty_url, "controller", token=3)
    back_up(layout, tmp_path / "one.tar", release="1.0-a", at=AT)
    began = int(time.time()) - 1
    if database.is_sqlite and left == "damaged":
        database.close()
        for path in tmp_path.glob("old.db*"):
            path.unlink()
        (tmp_path / "old.db").write_bytes(b"no database " * 1000)
    else:
        database.transact(leases.drop)
        database.close()
    restore(layout, tmp_path / "one.tar")
    assert began <= tokens_of(empty_url)["controller"] <= time.time() + 1
    # Killed after the database was replaced and before its tokens were raised.
    put(empty_url, "controller", token=3)
    restore(layout, tmp_path / "one.tar")
    assert began <= tokens_of(empty_url)["controller"] <= time.time() + 1
