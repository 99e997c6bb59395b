"""Backups of an installation: the database, the key of its secrets, the cluster's secret, and the settings.

Code, checkpoints and outputs lie in the storage, which has copies of its own.  A backup holds secrets: its owner alone
can read it.

python -P -m service.installation.backups write PREFIX RELEASE AT, with the archive as its output, and
python -P -m service.installation.backups restore PREFIX SOURCE, with the archive as its input, are what is done in the
home, as the user whose files it has: root follows nothing that this user has put there.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import sqlalchemy as sa

from cluster.local.certificates import write_private
from service.installation import as_user
from service.installation.databases import POSTGRESQL, SQLITE, database_url, dump, load, revision_of_copy
from service.installation.layout import InstallationProblem, Layout, layout_of
from service.steady_clock import CLOCK
from service.store import leases
from service.store.database import Database
from service.store.failures import StoreError
from service.store.migrate import knows

T = TypeVar("T")

#: Version of the form of backups.
FORM = 1
_MANIFEST = "backup.json"
_MODULE = "service.installation.backups"
#: Bytes of a manifest that are read at most.
_MOST_BYTES = 2**20
#: Files of the home that belong to a backup, where they are there, by their names in it.
_OF_HOME = {
    "secrets.key": "secrets.key",
    "ray.token": "ray.token",
    "ray-authority.pem": "ray-tls/authority.pem",
    "operator.token": "operator.token",
}
#: A cluster that runs goes on with what it was started with.
_OF_THE_CLUSTER = ("ray.token", "ray-authority.pem")
#: In the tokens of leases: the least of every lease.
_EVERY = ""


def back_up(layout: Layout, target: Path, *, release: str, at: str, user: str = "") -> dict[str, Any]:
    """Write a backup to a new file, whole or not at all; returns its manifest.

    Jobs, the API and the controllers go on: the database is copied as it is at one moment.  `at` is the time in words.
    `user` is the one that the processes run as, empty for this one.  Raises InstallationProblem.
    """
    if target.exists():
        raise InstallationProblem(f"{target} is there already; a backup never replaces another one")
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".backup-") as folder:
        draft = Path(folder) / "draft.tar"
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            if user:
                as_user.call(user, _MODULE, "write", str(layout.prefix), release, at, written=file)
            else:
                _write(layout, file, Path(folder), release=release, at=at)
            file.flush()
            os.fsync(file.fileno())
        # A link, not a rename: one of the same name made meanwhile is not replaced.
        os.link(draft, target)
    return read_manifest(target)


def _write(layout: Layout, target: BinaryIO, beside: Path, *, release: str, at: str) -> None:
    """Write the archive of a backup to an open file; its parts lie below the folder `beside` meanwhile."""
    settings = layout.read_settings()
    with tempfile.TemporaryDirectory(dir=beside, prefix=".backup-") as folder:
        files = _files(layout, settings)
        parts = {**files, dump(layout, settings, Path(folder)): None}
        for name, source in parts.items():
            if source is not None:
                shutil.copyfile(source, Path(folder) / name)
        if "secrets.key" not in files and _with_database(layout, settings, _has_secrets):
            raise InstallationProblem(
                f"the projects have secrets, but their key {_path_of('secrets.key', layout, settings)} is missing: a"
                " backup could not decrypt them; put the key there, or name it by REMORA_SECRETS_KEY_FILE"
            )
        digests = {name: _digest(Path(folder) / name) for name in sorted(parts)}
        _pack(target, Path(folder), {"form": FORM, "release": release, "at": at, "files": digests})


def read_manifest(source: Path, file: BinaryIO | None = None) -> dict[str, Any]:
    """What a backup, which may be open already, says of itself.

    Raises InstallationProblem when it is none, or of a later form.
    """
    try:
        with _archive(source, file) as archive:
            first = archive.next()
            if first is None or first.name != _MANIFEST or first.size > _MOST_BYTES:
                raise InstallationProblem(f"{source} is no backup of Remora")
            text = archive.extractfile(first)
            manifest = json.loads(text.read()) if text is not None else None
    except (OSError, tarfile.TarError, ValueError) as error:
        raise InstallationProblem(f"{source} is no backup of Remora: {error}") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("files"), dict):
        raise InstallationProblem(f"{source} is no backup of Remora")
    if manifest.get("form") != FORM:
        raise InstallationProblem(f"{source} was made by a later Remora; restore it with that one")
    return manifest


def restore(layout: Layout, source: Path, *, user: str = "") -> dict[str, Any]:
    """Put a backup in the place of what is there; nothing of the API and the controllers may run.

    Everything is unpacked and compared with its digest before the first file is replaced.  Called again after it was
    killed, it does the same.  `user` is the one that the processes run as, empty for this one.  Returns the manifest.
    Raises InstallationProblem.
    """
    with source.open("rb") as file:
        manifest = read_manifest(source, file)
        if user:
            as_user.call(user, _MODULE, "restore", str(layout.prefix), str(source), read=file)
        else:
            layout.backups.mkdir(mode=0o700, parents=True, exist_ok=True)
            _restore(layout, source, file, layout.backups)
    return manifest


def _restore(layout: Layout, source: Path, file: BinaryIO, beside: Path) -> None:
    manifest = read_manifest(source, file)
    settings = layout.read_settings()
    layout.home.mkdir(mode=0o700, parents=True, exist_ok=True)
    tokens = _tokens_before(layout, settings)
    with tempfile.TemporaryDirectory(dir=beside, prefix=".restore-") as folder:
        _unpack(source, file, Path(folder), manifest)
        _check_schema(source, Path(folder), manifest)
        for name in manifest["files"]:
            unpacked = Path(folder) / name
            if name in (SQLITE, POSTGRESQL):
                load(unpacked, layout, settings)
            else:
                _put(unpacked, _path_of(name, layout, settings), keeps=name in _OF_THE_CLUSTER)
    _with_database(layout, settings, lambda connection: _raise_tokens(connection, tokens))


def _tokens_before(layout: Layout, settings: Mapping[str, str]) -> dict[str, int]:
    """The tokens of the database that is replaced, also when an earlier restoration was killed.

    They are written down first: killed before they are raised again, they would be those of the backup.  Where they
    cannot be read, it is the time in seconds, which no lease has reached by changing its owner.
    """
    path = layout.home / "leases.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    try:
        found = _with_database(layout, settings, leases.tokens)
    except (sa.exc.SQLAlchemyError, StoreError):
        found = {_EVERY: int(CLOCK())}
    tokens = {name: max(kept.get(name, 0), found.get(name, 0)) for name in {*kept, *found}}
    draft = path.with_suffix(".draft")
    draft.write_text(json.dumps(tokens), encoding="utf-8")
    draft.replace(path)
    return tokens


def _raise_tokens(connection: sa.Connection, tokens: Mapping[str, int]) -> None:
    least = tokens.get(_EVERY, 0)
    found = leases.tokens(connection)
    leases.raise_tokens(connection, {name: max(tokens.get(name, 0), least) for name in found})


def _has_secrets(connection: sa.Connection) -> bool:
    # A database of an earlier release has no such table.
    if not sa.inspect(connection).has_table("secrets"):
        return False
    return connection.execute(sa.text("SELECT 1 FROM secrets LIMIT 1")).first() is not None


def _with_database(layout: Layout, settings: Mapping[str, str], work: Callable[[sa.Connection], T]) -> T:
    database = Database(database_url(layout, settings))
    try:
        return database.transact(work)
    finally:
        database.close()


def _path_of(name: str, layout: Layout, settings: Mapping[str, str]) -> Path:
    """Where a file of a backup belongs."""
    key = settings.get("REMORA_SECRETS_KEY_FILE", "") if name == "secrets.key" else ""
    return Path(key).expanduser() if key else layout.home / _OF_HOME[name]


def _files(layout: Layout, settings: Mapping[str, str]) -> dict[str, Path]:
    paths = {name: _path_of(name, layout, settings) for name in _OF_HOME}
    return {name: path for name, path in paths.items() if path.is_file()}


def _put(unpacked: Path, path: Path, *, keeps: bool) -> None:
    """Write a file where it belongs, unless the same is there; with `keeps`, unless any is."""
    content = unpacked.read_bytes()
    if path.exists() and (keeps or path.read_bytes() == content):
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_private(path, content)


def _check_schema(source: Path, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise InstallationProblem when this release cannot start on the database of a backup."""
    for name in manifest["files"]:
        if name in (SQLITE, POSTGRESQL):
            revision = revision_of_copy(folder / name)
            if not knows(revision):
                raise InstallationProblem(
                    f"the database in {source} has the schema {revision[:40]!r}, which this release does not know;"
                    f" restore it with {str(manifest.get('release'))[:60]!r} or a later one"
                )


def _pack(file: Any, folder: Path, manifest: Mapping[str, Any]) -> None:
    text = json.dumps(manifest, indent=2).encode()
    with tarfile.open(fileobj=file, mode="w") as archive:
        info = tarfile.TarInfo(_MANIFEST)
        info.size, info.mode = len(text), 0o600
        archive.addfile(info, io.BytesIO(text))
        for name in manifest["files"]:
            archive.add(folder / name, arcname=name, recursive=False)


def _archive(source: Path, file: BinaryIO | None) -> tarfile.TarFile:
    if file is None:
        return tarfile.open(source, "r:")
    file.seek(0)
    return tarfile.open(fileobj=file, mode="r:")


def _unpack(source: Path, opened: BinaryIO, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Take the files that the manifest names, and no others, out of the archive and compare them with their digests."""
    known = {*_OF_HOME, SQLITE, POSTGRESQL}
    wanted = dict(manifest["files"])
    if not wanted.keys() <= known:
        raise InstallationProblem(f"{source} names files that no backup has")
    with _archive(source, opened) as archive:
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


def main(words: Sequence[str]) -> None:
    """Do what is done in the home, as its user.  Raises InstallationProblem and OSError."""
    kind, prefix, *more = words
    layout = layout_of(Path(prefix))
    if kind == "write":
        release, at = more
        _write(layout, sys.stdout.buffer, layout.home, release=release, at=at)
    else:
        _restore(layout, Path(more[0]), sys.stdin.buffer, layout.home)


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (InstallationProblem, StoreError, OSError) as error:
        sys.exit(str(error))
