"""Backups of an installation: the database, the key of its secrets, the cluster's secret, and the settings.

Code, checkpoints and outputs lie in the storage, which has copies of its own; a backup lists what the database names
there, and restoring says what of it is missing.  A backup holds secrets: its owner alone can read it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from service.installation.layout import InstallationProblem, Layout
from service.store import leases
from service.store.database import Database

T = TypeVar("T")

#: Version of the form of backups.
FORM = 1
_MANIFEST = "backup.json"
#: Bytes of a manifest that are read at most.
_MOST_BYTES = 2**20
#: Files of the home that belong to a backup, where they are there.
_OF_HOME = ("secrets.key", "ray.token", "operator.token")
_SQLITE, _POSTGRESQL = "database.sqlite", "database.pgdump"


def back_up(layout: Layout, target: Path, *, release: str, at: str) -> dict[str, Any]:
    """Write a backup to a new file, whole or not at all; returns its manifest.

    Jobs, the API and the controllers go on: the database is copied as it is at one moment.  `at` is the time in words.
    Raises InstallationProblem.
    """
    if target.exists():
        raise InstallationProblem(f"{target} is there already; a backup never replaces another one")
    settings = layout.read_settings()
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".backup-") as folder:
        parts = {**_files(layout), _dump(layout, settings, Path(folder)): None}
        for name, source in parts.items():
            if source is not None:
                shutil.copyfile(source, Path(folder) / name)
        digests = {name: _digest(Path(folder) / name) for name in sorted(parts)}
        manifest = {"form": FORM, "release": release, "at": at, "files": digests}
        draft = Path(folder) / "draft.tar"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            _pack(file, Path(folder), manifest)
            file.flush()
            os.fsync(file.fileno())
        # A link, not a rename: one of the same name made meanwhile is not replaced.
        os.link(draft, target)
    return manifest


def read_manifest(source: Path) -> dict[str, Any]:
    """What a backup says of itself.  Raises InstallationProblem when it is none, or of a later form."""
    try:
        with tarfile.open(source, "r:") as archive:
            first = archive.next()
            if first is None or first.name != _MANIFEST or first.size > _MOST_BYTES:
                raise InstallationProblem(f"{source} is no backup of Remora")
            file = archive.extractfile(first)
            manifest = json.loads(file.read()) if file is not None else None
    except (OSError, tarfile.TarError, ValueError) as error:
        raise InstallationProblem(f"{source} is no backup of Remora: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise InstallationProblem(f"{source} is no backup of Remora")
    if manifest.get("form") != FORM:
        raise InstallationProblem(f"{source} was made by a later Remora; restore it with that one")
    return manifest


def restore(layout: Layout, source: Path) -> dict[str, Any]:
    """Put a backup in the place of what is there; nothing of the API and the controllers may run.

    Everything is unpacked and compared with its digest before the first file is replaced.  Called again after it was
    killed, it does the same.  Returns the manifest.  Raises InstallationProblem.
    """
    manifest = read_manifest(source)
    settings = layout.read_settings()
    layout.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    tokens = _tokens_before(layout, settings)
    with tempfile.TemporaryDirectory(dir=layout.home, prefix=".restore-") as folder:
        _unpack(source, Path(folder), manifest)
        for name in manifest["files"]:
            unpacked = Path(folder) / name
            if name == _SQLITE:
                _load_sqlite(unpacked, _sqlite_path(layout, settings))
            elif name == _POSTGRESQL:
                _load_postgresql(unpacked, settings)
            elif not (name == "ray.token" and (layout.home / name).exists()):
                # A cluster that runs goes on with the secret that it was started with.
                unpacked.replace(layout.home / name)
    _with_database(layout, settings, lambda connection: leases.raise_tokens(connection, tokens))
    return manifest


def _tokens_before(layout: Layout, settings: Mapping[str, str]) -> dict[str, int]:
    """The tokens of the database that is replaced, also when an earlier restoration was killed; none where it is new.

    They are written down first: killed before they are raised again, they would be those of the backup.
    """
    path = layout.home / "leases.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    try:
        found = _with_database(layout, settings, leases.tokens)
    except sa.exc.SQLAlchemyError:
        found = {}
    tokens = {name: max(kept.get(name, 0), found.get(name, 0)) for name in {*kept, *found}}
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(tokens), encoding="utf-8")
    draft.replace(path)
    return tokens


def _with_database(layout: Layout, settings: Mapping[str, str], work: Callable[[sa.Connection], T]) -> T:
    database = Database(settings.get("REMORA_DATABASE_URL") or f"sqlite:///{_sqlite_path(layout, settings)}")
    try:
        return database.transact(work)
    finally:
        database.close()


def _files(layout: Layout) -> dict[str, Path]:
    return {name: layout.home / name for name in _OF_HOME if (layout.home / name).is_file()}


def _dump(layout: Layout, settings: Mapping[str, str], folder: Path) -> str:
    """Copy the database into the folder; the name of the file."""
    if url := settings.get("REMORA_DATABASE_URL", ""):
        parsed = _postgresql(url)
        if parsed is not None:
            _call(["pg_dump", "--format=custom", "--no-owner", f"--file={folder / _POSTGRESQL}"], parsed)
            return _POSTGRESQL
    path = _sqlite_path(layout, settings)
    if not path.is_file():
        raise InstallationProblem(f"there is no database at {path}; the service has never run here")
    try:
        with (
            sqlite3.connect(f"file:{path}?mode=ro", uri=True) as live,
            sqlite3.connect(folder / _SQLITE) as copy,
        ):
            live.backup(copy)
    except sqlite3.Error as error:
        raise InstallationProblem(f"the database {path} cannot be copied: {error}") from None
    return _SQLITE


def _load_sqlite(copied: Path, path: Path) -> None:
    """Write a copy over the database through SQLite, so that whoever has it open sees the one or the other."""
    try:
        with sqlite3.connect(copied) as source, sqlite3.connect(path) as target:
            source.backup(target)
    except sqlite3.Error as error:
        raise InstallationProblem(f"the database {path} cannot be replaced: {error}") from None


def _load_postgresql(dumped: Path, settings: Mapping[str, str]) -> None:
    parsed = _postgresql(settings.get("REMORA_DATABASE_URL", ""))
    if parsed is None:
        raise InstallationProblem(
            "the backup is of a PostgreSQL database; set REMORA_DATABASE_URL to the one to restore it to"
        )
    words = ["--clean", "--if-exists", "--no-owner", "--single-transaction", "--exit-on-error"]
    _call(["pg_restore", *words, f"--dbname={parsed.database}", str(dumped)], parsed)


def _sqlite_path(layout: Layout, settings: Mapping[str, str]) -> Path:
    url = settings.get("REMORA_DATABASE_URL", "")
    found = sa.make_url(url).database if url else None
    return Path(found) if found else layout.home / "remora.db"


def _postgresql(url: str) -> sa.URL | None:
    if not url:
        return None
    try:
        parsed = sa.make_url(url)
    except sa.exc.ArgumentError:
        raise InstallationProblem("REMORA_DATABASE_URL is not a database URL") from None
    return parsed if parsed.get_backend_name() in ("postgresql", "postgres") else None


def _call(command: list[str], url: sa.URL) -> None:
    """Run a program of PostgreSQL; the password goes by the environment, where no other user sees it."""
    given = {
        "PGHOST": url.host or str(url.query.get("host", "")),
        "PGPORT": str(url.port or ""),
        "PGUSER": url.username or "",
        "PGPASSWORD": url.password or "",
        "PGDATABASE": url.database or "",
    }
    environment = {**os.environ, **{name: value for name, value in given.items() if value}}
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise InstallationProblem(
            f"{command[0]} is not installed; it is part of PostgreSQL's client"
        ) from None
    if done.returncode:
        raise InstallationProblem(f"{command[0]} failed: {done.stderr.strip()[-400:]}")


def _pack(file: Any, folder: Path, manifest: Mapping[str, Any]) -> None:
    text = json.dumps(manifest, indent=2).encode()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo(_MANIFEST)
        info.size, info.mode = len(text), 0o600
        archive.addfile(info, io.BytesIO(text))
        for name in manifest["files"]:
            archive.add(folder / name, arcname=name, recursive=False)


def _unpack(source: Path, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Take the files that the manifest names, and no others, out of the archive and compare them with their digests."""
    known = {*_OF_HOME, _SQLITE, _POSTGRESQL}
    wanted = dict(manifest["files"])
    if not wanted.keys() <= known:
        raise InstallationProblem(f"{source} names files that no backup has")
    with tarfile.open(source, "r:") as archive:
        for member in archive:
            if member.name in wanted and member.isreg():
                taken = archive.extractfile(member)
                with os.fdopen(os.open(folder / member.name, os.O_WRONLY | os.O_CREAT, 0o600), "wb") as file:
                    shutil.copyfileobj(taken, file)  # type: ignore[arg-type]
    for name, digest in wanted.items():
        if not (folder / name).is_file() or _digest(folder / name) != digest:
            raise InstallationProblem(f"{source} is damaged: {name} is not what was written")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
